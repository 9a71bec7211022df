// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <string_view>

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "base/throw_error.h"
#include "cost_model.h"
#include "kinds.h"

namespace lockstep::bench {
namespace {

std::size_t parse_size(const std::string& text) {
  const auto unit = text.empty() ? std::string_view::npos
                                 : std::string_view("KMG").find(static_cast<char>(
                                       std::toupper(static_cast<unsigned char>(text.back()))));
  const bool has_unit = unit != std::string_view::npos;
  const auto bytes = has_unit ? std::size_t{1024} << (10 * unit) : 1;
  const auto digits = std::string_view(text).substr(0, text.size() - (has_unit ? 1 : 0));
  const auto value = parse_number<std::size_t>(digits).value_or(0);
  if (value == 0 || value > std::numeric_limits<std::int64_t>::max() / bytes) {
    throw_error<ArgumentError>(
        "--sizes: \"{}\" is not a size; write a positive integer, optionally with K, M or G", text);
  }
  return value * bytes;
}

std::vector<std::size_t> parse_range(const std::string& text) {
  const auto parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3) {
    throw_error<ArgumentError>("--sizes: \"{}\" is neither first:last nor first:last:factor, as in 1K:64M:4",
                               text);
  }
  const auto first = parse_size(parts[0]);
  const auto last = parse_size(parts[1]);
  const auto factor = parts.size() == 3 ? parse_number<std::size_t>(parts[2]).value_or(0) : 2;
  if (factor < 2) {
    throw_error<ArgumentError>("--sizes: the factor \"{}\" must be a whole number, 2 or more", parts[2]);
  }
  if (first > last) {
    throw_error<ArgumentError>("--sizes: \"{}\" starts above its end; name the smaller size first", text);
  }
  std::vector<std::size_t> sizes{first};
  while (sizes.back() <= last / factor) sizes.push_back(sizes.back() * factor);
  return sizes;
}

// Unparsed option values.
struct RawOptions {
  std::string collectives = {};
  std::string sizes = "1K:256M:4";
  std::string backends = "shm,gloo";
  std::string memories = "ordinary,zero-copy";
  std::string dtypes = "float32";
  bool json = false;
  bool csv = false;
};

void add_common(CLI::App& app, RawOptions& raw, Options& options) {
  app.add_option("collective", raw.collectives, "all, or some of these, separated by commas: " + kind_names())
      ->required()
      ->type_name("");
  app.add_option("--sizes", raw.sizes, "Bytes: FIRST:LAST (doubling), FIRST:LAST:FACTOR, or a list")
      ->type_name("SIZES");
  app.add_option("--iterations", options.iterations, "Timed calls per row; 0: chosen by size")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("N");
  app.add_option("--warmup", options.warmup, "Untimed calls before them")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N");
  app.add_flag("--bind,!--no-bind", options.bind, "Bind each rank to a core (default)");
  app.add_flag("--check,!--no-check", options.check,
               "Count wrong values before and after the timing (default)");
  auto* json = app.add_flag("--json", raw.json, "Print one JSON array");
  app.add_flag("--csv", raw.csv, "Print comma-separated values")->excludes(json);
  app.footer(
      "1K is 1024 bytes. The size is that of the tensor on each rank for all-reduce, broadcast, reduce and\n"
      "send-recv, and that of all ranks' parts together for the others, as in nccl-tests.\n"
      "Before each call every rank rewrites its input and waits in a barrier; neither is timed. Ranks of\n"
      "one host with a core each then start at the same time of its clock. The time of a call is that of\n"
      "its slowest rank. algbw is size / time; busbw is computed as in nccl-tests.");
}

void add_own(CLI::App& app, RawOptions& raw, Options& options) {
  app.add_option("--backend", raw.backends,
                 "shm, gloo, ..., timed interleaved; memory is the lower bound that the memory's speed sets "
                 "for an all-reduce of float32 (without synchronization)")
      ->type_name("NAMES");
  app.add_option("--memory", raw.memories, "ordinary, zero-copy (tensors that the backend allocates)")
      ->type_name("KINDS");
  app.add_option("--dtype", raw.dtypes, dtype_names())->type_name("NAMES");
  app.add_option("--op", options.op, "sum, avg, min or max")
      ->check(CLI::IsMember({"sum", "avg", "min", "max"}))
      ->type_name("NAME");
  app.add_flag(
      "--nodes", options.nodes,
      "All-reduce between hosts, beside the prediction of a cost model that is fitted to the rows; by "
      "default --backend hierarchical,gloo --memory ordinary");
  app.add_flag("--progress", options.progress, "Report each measurement on stderr");
}

std::vector<std::string> collectives_of(const std::string& raw) {
  std::vector<std::string> names;
  for (const auto& name : split(raw, ',')) {
    if (name == "all") {
      for (const auto& kind : kinds()) names.push_back(kind.name);
    } else {
      names.push_back(find_kind(name).name);
    }
  }
  if (names.empty()) throw ArgumentError("name a collective: all, or some of " + kind_names());
  return names;
}

void check_memories(const std::vector<std::string>& memories) {
  for (const auto& memory : memories) {
    if (memory == "ordinary" || memory == "zero-copy") continue;
    throw_error<ArgumentError>("--memory: \"{}\" is unknown; use ordinary or zero-copy", memory);
  }
}

void check_memory_limit(const Options& options) {
  const auto has = [](const auto& names, const char* name) { return std::ranges::count(names, name) > 0; };
  if (!has(options.backends, "memory")) return;
  if (has(options.collectives, "all-reduce") && has(options.dtypes, "float32") && options.op == "sum") return;
  throw ArgumentError("--backend memory supports only all-reduce of float32 with --op sum");
}

void check_nodes(const Options& options) {
  if (!options.nodes) return;
  if (options.collectives != std::vector<std::string>{"all-reduce"}) {
    throw ArgumentError("--nodes supports only the collective all-reduce");
  }
  for (const auto& name : options.backends) (void)all_reduce_terms(name, 1, {});
}

std::vector<std::string> names_of(const std::string& list, const char* option) {
  auto names = split(list, ',');
  if (names.empty())
    throw_error<ArgumentError>("{} is empty; give a name, or several separated by commas", option);
  return names;
}

Options checked(const RawOptions& raw, Options options) {
  options.collectives = collectives_of(raw.collectives);
  options.sizes = parse_sizes(raw.sizes);
  options.backends = names_of(raw.backends, "--backend");
  options.memories = names_of(raw.memories, "--memory");
  options.dtypes = names_of(raw.dtypes, "--dtype");
  options.format = raw.json ? Format::json : raw.csv ? Format::csv : Format::table;
  for (const auto& name : options.dtypes) (void)find_dtype(name);
  check_memories(options.memories);
  check_memory_limit(options);
  check_nodes(options);
  return options;
}

}  // namespace

std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (const auto& part : split(text, ',')) {
    const auto more = part.find(':') == std::string::npos ? std::vector{parse_size(part)} : parse_range(part);
    sizes.insert(sizes.end(), more.begin(), more.end());
  }
  if (sizes.empty())
    throw_error<ArgumentError>("--sizes: \"{}\" has no size; give sizes as in 4K,1M or a range as in 1K:64M",
                               text);
  return sizes;
}

Options parse_options(Tool tool, std::vector<std::string> arguments) {
  const bool own = tool == Tool::lockstep_bench;
  CLI::App app(own ? "Times collectives between ranks, with interleaved backends\n"
                     "Number of ranks on this machine: --nproc N, default 2; on others: --hosts a,b:4"
                   : "Times Open MPI's float32 collectives as lockstep bench does",
               own ? "lockstep bench" : "mpirun mpi_collectives");
  app.option_defaults()->always_capture_default();
  RawOptions raw;
  Options options;
  add_common(app, raw, options);
  if (own) add_own(app, raw, options);
  std::ranges::reverse(arguments);  // CLI11 expects the reverse order
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    throw HelpWanted{app.help()};
  } catch (const CLI::ParseError& error) {
    throw_error<ArgumentError>("{} (see {} --help)", error.what(), app.get_name());
  }
  options.memory_given = own && app.count("--memory") > 0;
  if (options.nodes && app.count("--backend") == 0) raw.backends = "hierarchical,gloo";
  if (options.nodes && !options.memory_given) raw.memories = "ordinary";
  return checked(raw, options);
}

}  // namespace lockstep::bench
