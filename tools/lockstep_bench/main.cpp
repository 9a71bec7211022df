// SPDX-License-Identifier: BSD-3-Clause
// One rank of `lockstep bench`.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/rendezvous/init.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "cost_model.h"
#include "kinds.h"
#include "measure.h"
#include "options.h"
#include "rank.h"
#include "report.h"

namespace lockstep::bench {
namespace {

constexpr const char* kMemoryLimit = "memory";

// Throws ArgumentError if there are no several hosts.
Cluster cluster_of(const Context& context) {
  const auto hosts = context.group().all_gather_object(memory_identity());
  const auto count = static_cast<int>(std::set(hosts.begin(), hosts.end()).size());
  if (count > 1) return {.hosts = count, .ranks = context.world_size()};
  throw_error<ArgumentError>(
      "--nodes needs ranks on several hosts, but all {} are on one; use lockstep bench --hosts a,b",
      context.world_size());
}

class Bench {
 public:
  // All ranks construct it with the same options. `cores`: number of cores that the ranks of this host may
  // use.
  Bench(const Options& options, const Context& context, int cores);

  // Measures; rank 0 prints.
  void run();

 private:
  std::vector<BenchCase> cases(const Kind& kind, const std::string& dtype, std::int64_t count) const;
  void measure(const Kind& kind, const std::string& dtype, std::size_t bytes);
  bool supports_memory(const std::string& backend, const std::string& memory) const;
  void add(const Row& row);
  void log_on_main(const std::string& text) const;

  const Options& options_;
  const Context& context_;
  Cluster cluster_;
  Sync sync_;  // over the context's group, which is not measured
  std::map<std::string, ProcessGroup> groups_;
  std::function<Trial(std::int64_t)> memory_limit_;
  Report report_;
  std::vector<Row> rows_;  // with --nodes: until the model is fitted
};

Bench::Bench(const Options& options, const Context& context, int cores)
    : options_(options),
      context_(context),
      sync_{context.group(), can_start_together(context.world_size(), context.local_world_size(), cores)},
      report_(options.format, context.is_main_process() ? &std::cout : nullptr, options.nodes) {
  if (options.nodes) cluster_ = cluster_of(context);
  std::vector<int> ranks(static_cast<std::size_t>(context.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (const auto& name : options.backends) {
    if (name == kMemoryLimit) {
      memory_limit_ = memory_limit(sync_.group, std::ranges::max(options.sizes));
      continue;
    }
    groups_.emplace(name, context.new_group(ranks, {.backend = name, .group_desc = name}));
    const bool asked = options.memory_given && std::ranges::count(options.memories, "zero-copy") > 0;
    if (asked && !supports_memory(name, "zero-copy")) {
      log_on_main(fmt::format("{} has no zero-copy tensors: no rows for --memory zero-copy", name));
    }
  }
}

void Bench::run() {
  report_.begin(context_.world_size());
  for (const auto& name : options_.collectives) {
    const auto& kind = find_kind(name);
    if (!kind.moves_data) {
      measure(kind, options_.dtypes.front(), 1);
      continue;
    }
    for (const auto& dtype : options_.dtypes) {
      for (const auto bytes : options_.sizes) measure(kind, dtype, bytes);
    }
  }
  if (options_.nodes) predict(rows_, cluster_);
  for (const auto& row : rows_) report_.add(row);
  report_.finish();
}

bool Bench::supports_memory(const std::string& backend, const std::string& memory) const {
  return memory == "ordinary" || groups_.at(backend).backend()->supportsTensorAlloc(0);
}

std::vector<BenchCase> Bench::cases(const Kind& kind, const std::string& dtype, std::int64_t count) const {
  std::vector<BenchCase> all;
  for (const auto& name : options_.backends) {
    if (name == kMemoryLimit) {
      if (kind.name == "all-reduce" && dtype == "float32") {
        all.push_back({.backend = name, .memory = "limit", .trial = memory_limit_(count)});
      }
      continue;
    }
    for (const auto& memory : options_.memories) {
      if (!supports_memory(name, memory)) continue;
      const TrialRequest request{.group = groups_.at(name),
                                 .count = count,
                                 .dtype = scalar_type(dtype),
                                 .op = reduce_op(options_.op),
                                 .zero_copy = memory == "zero-copy"};
      all.push_back(
          {.backend = name, .memory = kind.moves_data ? memory : "-", .trial = prepare(kind.name, request)});
      if (!kind.moves_data) break;
    }
  }
  return all;
}

void Bench::measure(const Kind& kind, const std::string& dtype, std::size_t bytes) {
  const auto element = find_dtype(dtype).size;
  const auto count = element_count(kind, bytes, element, context_.world_size());
  auto all = cases(kind, dtype, count);
  if (options_.progress) log_on_main(fmt::format("{}, {}, {} bytes", kind.name, dtype, bytes));
  const Plan plan{.warmup = options_.warmup,
                  .iterations = options_.iterations > 0 ? options_.iterations : iterations_for(bytes),
                  .check = options_.check};
  time_interleaved(all, sync_, plan);
  for (const auto& each : all) {
    const Row row{.collective = kind.name,
                  .bytes = kind.moves_data ? static_cast<std::size_t>(count) * element : 0,
                  .count = kind.moves_data ? count : 0,
                  .dtype = kind.moves_data ? dtype : "-",
                  .op = kind.reduces ? options_.op : "-",
                  .backend = each.backend,
                  .memory = each.memory,
                  .ranks = context_.world_size(),
                  .iterations = plan.iterations,
                  .wrong = plan.check ? total_wrong(each, sync_.group) : -1};
    add(with_times(row, slowest_spans(each, sync_.group), bus_factor(kind, row.ranks)));
  }
}

void Bench::add(const Row& row) {
  if (options_.nodes) {
    rows_.push_back(row);
  } else {
    report_.add(row);
  }
}

void Bench::log_on_main(const std::string& text) const {
  if (context_.is_main_process()) log(LogLevel::info, text);
}

void run(const Options& options) {
  at::set_num_threads(1);
  const auto context = init();
  const int cores = usable_cores();
  if (options.bind) bind_to_core(context.local_rank());
  Bench(options, context, cores).run();
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    bench::run(bench::parse_options(bench::Tool::lockstep_bench, {argv + 1, argv + argc}));
    return 0;
  } catch (const bench::HelpWanted& help) {
    std::cout << help.text << std::flush;
    return 0;
  } catch (const ArgumentError& error) {
    log(LogLevel::error, error.what());
    return 2;
  } catch (const std::exception& error) {
    log(LogLevel::error, exception_text(error));
    return 1;
  }
}
