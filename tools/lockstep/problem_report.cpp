// SPDX-License-Identifier: BSD-3-Clause
#include "problem_report.h"

#include <algorithm>
#include <chrono>
#include <clocale>
#include <exception>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/env.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "doctor/checks.h"
#include "doctor/devices.h"
#include "doctor/report.h"
#include "observe/find_runs.h"
#include "observe/private_file.h"
#include "observe/processes.h"
#include "observe/recorder_files.h"
#include "observe/report/redaction.h"
#include "observe/stack_report.h"
#include "observe/verdict.h"
#include "report_parts.h"
#include "top.h"
#include "top_table.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

// Calls of a rank. An issue takes 65,536 characters.
constexpr std::size_t kShownCalls = 16;

std::string section(const std::string& title, const std::string& text) {
  return fmt::format("\n== {} ==\n{}{}", title, text, text.ends_with('\n') ? "" : "\n");
}

std::string facts_text(const observe::Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("{:<13} {}\n", name, value);
  return text;
}

std::string variables_text(const std::vector<std::string>& variables) {
  std::string text;
  for (const auto& [name, value] : observe::shown_variables(variables))
    text += fmt::format("{}={}\n", name, printable_text(value));
  return text.empty() ? "none of those that a report shows\n" : text;
}

std::string calls_text(const observe::Run& run) {
  std::string text;
  for (const auto& rank : run.ranks) {
    text += rank.describe() + '\n';
    auto lines = call_lines(rank, run.taken_at);
    const auto shown = std::min(lines.size(), kShownCalls);
    for (std::size_t i = 0; i < shown; ++i) text += fmt::format("  {}\n", printable_text(lines[i]));
    if (shown < lines.size()) text += fmt::format("  and {} calls before them\n", lines.size() - shown);
  }
  return text;
}

// A section with what `contents` returns, or why it cannot.
std::string section_of(const std::string& title, const std::function<std::string()>& contents) {
  try {
    return section(title, contents());
  } catch (const std::exception& error) {
    return section(title, printable_text(fmt::format("not read: {}", exception_text(error))));
  }
}

RunText snapshot_text(const Snapshot& snapshot) {
  const auto ranks = snapshot.run.ranks.size();
  return {.line = printable_text(
              fmt::format("run of {} rank{}: {}", ranks, ranks == 1 ? "" : "s", snapshot.verdict.text)),
          .sections = section_of("Run", [&] { return plain_text(snapshot); }) +
                      section_of("Last calls", [&] { return calls_text(snapshot.run); })};
}

RunText no_run(const std::string& reason) {
  const auto line = printable_text("no run: " + reason);
  return {.line = line, .sections = section("Run", line)};
}

RunText living_ranks(int pid) {
  try {
    return snapshot_text(snapshot_of(std::to_string(pid), /*hosts=*/false));
  } catch (const std::exception& error) {
    return no_run(fmt::format("that of pid {} was not read: {}", pid, exception_text(error)));
  }
}

RunText recorded_run(const std::string& folder) {
  Snapshot snapshot{.run = observe::read_recorder_files(folder)};
  snapshot.figures = observe::figures_of(snapshot.run);
  snapshot.verdict = observe::judge(snapshot.run);
  auto text = snapshot_text(snapshot);
  text.sections.insert(0, section("Recorder files", fmt::format("of {}", folder)));
  return text;
}

std::string command_text(int pid) {
  return printable_text(fmt::format("{}", fmt::join(observe::redacted_words(observe::command_of(pid)), " ")));
}

}  // namespace

// The command is that of one rank: others may differ in RANK and its relatives.
RunText text_of(const observe::ObservedRun& run) {
  const int pid = run.pids.front();
  auto text = living_ranks(pid);
  text.sections += section_of("Stacks", [&] { return printable_lines(observe::stacks_text(run)) + '\n'; }) +
                   section_of(fmt::format("Command of pid {}", pid), [&] { return command_text(pid); }) +
                   section_of(fmt::format("Environment of pid {}", pid),
                              [&] { return variables_text(observe::variables_of(pid)); });
  return text;
}

RunText run_text(const std::string& source) {
  std::setlocale(LC_CTYPE, "");  // which characters can be shown
  std::error_code ignored;
  if (fs::is_directory(source, ignored)) return recorded_run(source);
  if (source.empty() && observe::find_runs(observe::own_processes()).empty()) {
    return no_run(
        "this user has none on this host; --run DIR adds the recorder files of a run that has ended");
  }
  try {
    return text_of(observe::find_run(source));
  } catch (const ArgumentError&) {
    throw;
  } catch (const Error& error) {
    return no_run(error.what());
  }
}

void write_problem_report(const fs::path& file, const doctor::Facts& facts, const doctor::Findings& findings,
                          const std::string& run) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto title =
      fmt::format("Report of lockstep doctor, {}\n", local_time(std::chrono::duration<double>(now).count()));
  const auto text =
      title +
      "Values that look like secrets are [redacted], and ~ is the home folder. Read the file before you publish it.\n" +
      section("Host", facts_text(report_facts(facts.libtorch.version))) +
      section("Checks: " + doctor::summary(findings), doctor::findings_text(findings, /*all=*/true)) +
      section("Devices", doctor::devices_text(facts.devices, std::nullopt)) +
      section("Environment of this command", variables_text(own_variables())) + run;
  try {
    observe::write_private_file(
        file, observe::redacted(observe::without_home(text, Env().get("HOME").value_or(""))));
  } catch (const std::system_error& error) {
    throw_error<Error>("--report {}: the file was not written: {}", file.string(),
                       errno_text(error.code().value()));
  }
}

}  // namespace lockstep::cli
