// SPDX-License-Identifier: BSD-3-Clause
#include "run_observed.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/host.h"
#include "base/shared_memory.h"
#include "base/throw_error.h"
#include "launch/launch.h"
#include "observe/host_snapshot.h"
#include "observe/metrics.h"
#include "rank_watch.h"
#include "run_command.h"
#include "run_report.h"

namespace lockstep::cli {
namespace {

// Someone who reads metrics must not be able to join the run.
void require_another_secret(const launch::Secret& token, const RunArguments& arguments, const Env& env) {
  if (!token.is(launch::read_secret(arguments.secret_file, env).text())) return;
  throw ArgumentError("--metrics-token-file holds the secret of the run; use another text");
}

launch::Secret metrics_token(const RunArguments& arguments, const Env& env) {
  if (arguments.metrics_token_file.empty()) return {};
  auto token = launch::secret_in("--metrics-token-file", arguments.metrics_token_file);
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  if (!std::ranges::all_of(token.text(), is_visible)) {
    throw_error<ArgumentError>(
        "--metrics-token-file: {} has characters that no HTTP header can carry; use "
        "letters and digits, such as those of `openssl rand -hex 32`",
        arguments.metrics_token_file);
  }
  require_another_secret(token, arguments, env);
  return token;
}

}  // namespace

std::optional<launch::MetricsOptions> metrics_options(const RunArguments& arguments, const Env& env) {
  if (!arguments.metrics_port) {
    if (!arguments.metrics_bind && arguments.metrics_token_file.empty()) return std::nullopt;
    throw_error<ArgumentError>("{} has no effect without --metrics-port; add it",
                               arguments.metrics_bind ? "--metrics-bind" : "--metrics-token-file");
  }
  const int port = *arguments.metrics_port;
  if (port < 0 || port > std::numeric_limits<std::uint16_t>::max())
    throw_error<ArgumentError>("--metrics-port {}: use 1 to 65535, or 0 for any free port", port);
  launch::MetricsOptions options{.port = static_cast<std::uint16_t>(port),
                                 .token = metrics_token(arguments, env)};
  if (arguments.metrics_bind) options.bind = *arguments.metrics_bind;
  return options;
}

int launch_here(const RunArguments& arguments, const std::vector<std::string>& words) {
  auto options = launch_options(arguments, launch::this_machine());
  options.words = words;
  options.words.insert(options.words.begin(), own_program().string());
  options.snapshot = observe::snapshot_parts;
  const auto watched = watch_options(arguments, options);
  SharedMemory shared;  // with the supervisor of the ranks
  std::optional<observe::LaunchedRanks> ranks;
  if (options.metrics || watched) {
    shared = SharedMemory::create("notes", sizeof(launch::RunNotes));
    shared.commit(0, shared.size(), "the notes of the launcher's processes");
    options.notes = new (shared.data()) launch::RunNotes;
  }
  if (options.metrics) {
    ranks.emplace(options.nproc_per_node, options.run_id == "none" ? "" : options.run_id,
                  options.notes->restarts);
    options.metrics->text = [&ranks] { return ranks->metrics(); };
  }
  std::vector<launch::GuardOptions::Companion> beside;
  std::optional<RankWatch> watch;
  if (watched) {
    watch.emplace(*watched, options.nproc_per_node, *options.notes);
    beside.push_back({"the watch of the ranks' progress", [&](int stop) { watch->watch(stop); }});
  }
  if (arguments.report.empty() || options.adopted) return launch::launch(options, std::move(beside));
  RunReport report(report_file(arguments), words);
  options.account = report.account();
  beside.push_back({"the observer of the ranks", [&](int stop) { report.watch(stop); }});
  const int code = launch::launch(options, std::move(beside));
  report.write(code);
  return code;
}

}  // namespace lockstep::cli
