// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "kinds.h"
#include "sizes.h"

namespace lockstep::bench {
namespace {

// As written, unchecked.
struct Words {
  std::string collectives = {};
  std::string sizes = "1K:256M:4";
  std::string backends = "shm,gloo";
  std::string memories = "ordinary,inplace";
  std::string dtypes = "float32";
  bool json = false;
  bool csv = false;
};

void add_common(CLI::App& app, Words& words, Options& options) {
  app.add_option("collective", words.collectives,
                 "all, or some of these, separated by commas: " + kind_names())
      ->required()
      ->type_name("");
  app.add_option("--sizes", words.sizes, "Bytes: FIRST:LAST (doubling), FIRST:LAST:FACTOR, or a list")
      ->type_name("SIZES")
      ->capture_default_str();
  app.add_option("--iterations", options.iterations, "Timed calls a row; 0: chosen by the size")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "Calls before them")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--bind,!--no-bind", options.bind, "Each rank on one core (default)");
  app.add_flag("--check,!--no-check", options.check, "Count wrong values after warm-up and end (default)");
  auto* json = app.add_flag("--json", words.json, "Print one JSON array");
  app.add_flag("--csv", words.csv, "Print comma-separated values")->excludes(json);
  app.footer(
      "1K is 1024 bytes. A size is that of the tensor on each rank for all-reduce, broadcast, reduce and\n"
      "send-recv, and as in nccl-tests that of all ranks' parts together for the others.\n"
      "Before each call the rank that owns a buffer rewrites it and all ranks meet in a barrier, neither of\n"
      "which is timed. Ranks of one host that have a core each then begin at the same time by its clock. A\n"
      "call takes as long as on its slowest rank. algbw is size / time, busbw what nccl-tests make of it.");
}

void add_own(CLI::App& app, Words& words, Options& options) {
  app.add_option("--backend", words.backends,
                 "Some of shm, gloo, ..., timed in turns; memory stands for the time in which the memory "
                 "itself lets an all-reduce of float32 be done (ranks that wait for nobody)")
      ->type_name("NAMES")
      ->capture_default_str();
  app.add_option("--memory", words.memories, "ordinary tensors, inplace: those that the backend allocates")
      ->type_name("KINDS")
      ->capture_default_str();
  app.add_option("--dtype", words.dtypes, dtype_names())->type_name("NAMES")->capture_default_str();
  app.add_option("--op", options.op, "sum, avg, min or max")
      ->check(CLI::IsMember({"sum", "avg", "min", "max"}))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_flag("--progress", options.progress, "Say on stderr what is being measured");
}

std::vector<std::string> collectives_of(const std::string& words) {
  std::vector<std::string> names;
  for (const auto& name : split(words, ',')) {
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
    if (memory == "ordinary" || memory == "inplace") continue;
    throw ArgumentError(fmt::format("--memory: \"{}\" is neither ordinary nor inplace", memory));
  }
}

// Where nothing is left for it to do.
void check_memory_limit(const Options& options) {
  const auto has = [](const auto& names, const char* name) { return std::ranges::count(names, name) > 0; };
  if (!has(options.backends, "memory")) return;
  if (has(options.collectives, "all-reduce") && has(options.dtypes, "float32") && options.op == "sum") return;
  throw ArgumentError("--backend memory: it stands for all-reduce of float32 with --op sum only");
}

void check_not_empty(const std::vector<std::string>& names, const char* option) {
  if (names.empty()) throw ArgumentError(fmt::format("{} names nothing", option));
}

Options checked(const Words& words, Options options) {
  options.collectives = collectives_of(words.collectives);
  options.sizes = parse_sizes(words.sizes);
  options.backends = split(words.backends, ',');
  options.memories = split(words.memories, ',');
  options.dtypes = split(words.dtypes, ',');
  options.format = words.json ? Format::json : words.csv ? Format::csv : Format::table;
  check_not_empty(options.backends, "--backend");
  check_not_empty(options.memories, "--memory");
  check_not_empty(options.dtypes, "--dtype");
  for (const auto& name : options.dtypes) (void)find_dtype(name);
  check_memories(options.memories);
  check_memory_limit(options);
  return options;
}

}  // namespace

Options parse_options(Tool tool, std::vector<std::string> arguments) {
  const bool own = tool == Tool::lockstep_bench;
  CLI::App app(own ? "Times collectives between ranks, several backends in turns\n"
                     "Ranks on this machine: --nproc N, by default 2"
                   : "Times Open MPI's collectives of float32 as lockstep bench does its own",
               own ? "lockstep bench" : "mpirun mpi_collectives");
  Words words;
  Options options;
  add_common(app, words, options);
  if (own) add_own(app, words, options);
  std::ranges::reverse(arguments);  // CLI11 takes them last first
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    throw HelpWanted{app.help()};
  } catch (const CLI::ParseError& error) {
    throw ArgumentError(fmt::format("{} (see {} --help)", error.what(), app.get_name()));
  }
  options.memory_given = own && app.count("--memory") > 0;
  return checked(words, options);
}

}  // namespace lockstep::bench
