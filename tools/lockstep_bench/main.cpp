// SPDX-License-Identifier: BSD-3-Clause
// One rank of `lockstep bench`.
#include <iostream>
#include <map>
#include <numeric>
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/rendezvous/init.h>

#include "collectives.h"
#include "measure.h"
#include "memory_limit.h"
#include "options.h"
#include "report.h"

namespace lockstep::bench {
namespace {

ReduceOp op_of(const std::string& name) {
  if (name == "avg") return ReduceOp::AVG;
  if (name == "min") return ReduceOp::MIN;
  return name == "max" ? ReduceOp::MAX : ReduceOp::SUM;
}

// To one of the cores that this process may use.
void bind_to_core(int local_rank) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof(usable), &usable) != 0) return;
  int skip = local_rank % CPU_COUNT(&usable);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

class Bench {
 public:
  Bench(const Options& options, const Context& context)
      : options_(options), context_(context), sync_(context.group()) {
    std::vector<int> ranks(static_cast<std::size_t>(context.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (const auto& name : options.backends) {
      if (name == "memory") {
        memory_.emplace(sync_, std::ranges::max(options.sizes));
      } else {
        groups_.emplace(name, *context.new_group(ranks, {.backend = name, .group_name = name}));
      }
    }
  }

  void run() {
    print_head();
    for (const auto& name : options_.collectives) {
      const auto& collective = find_collective(name);
      for (const auto dtype : options_.dtypes) {
        for (const auto bytes : options_.sizes) {
          measure(collective, dtype, bytes);
          if (name == "barrier") break;
        }
      }
    }
    if (options_.format == Format::json && context_.is_main()) std::cout << json_text(rows_) << std::endl;
  }

 private:
  void print_head() const {
    if (!context_.is_main() || options_.format == Format::json) return;
    std::cout << (options_.format == Format::csv ? csv_header() : table_header()) << std::endl;
  }

  std::vector<Contender> contenders(const Collective& collective, c10::ScalarType dtype,
                                    std::int64_t count) const {
    std::vector<Contender> all;
    for (const auto& name : options_.backends) {
      if (name == "memory") {
        if (collective.name == "all-reduce" && dtype == at::kFloat) {
          all.push_back({.backend = name, .memory = "limit", .trial = memory_->prepare(count)});
        }
        continue;
      }
      const auto& group = groups_.at(name);
      for (const auto& memory : options_.memories) {
        const bool inplace = memory == "inplace";
        if (inplace && !group.backend()->supportsTensorAlloc(0)) continue;
        all.push_back({.backend = name,
                       .memory = memory,
                       .trial = collective.prepare({.group = group,
                                                    .count = count,
                                                    .dtype = dtype,
                                                    .op = op_of(options_.op),
                                                    .inplace = inplace})});
        if (collective.name == "barrier") break;
      }
    }
    return all;
  }

  void measure(const Collective& collective, c10::ScalarType dtype, std::size_t bytes) {
    const auto parts = collective.in_parts ? context_.world_size() : 1;
    const auto count =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / c10::elementSize(dtype)) / parts) * parts;
    auto all = contenders(collective, dtype, count);
    if (all.empty()) return;
    const int iterations = options_.iterations > 0 ? options_.iterations : iterations_for(bytes);
    say(fmt::format("{} of {} bytes", collective.name, bytes));
    time_in_turns(all, sync_, iterations, options_.check);
    say("");
    const bool is_barrier = collective.name == "barrier";
    const Row model{.collective = collective.name,
                    .bytes = is_barrier ? 0 : static_cast<std::size_t>(count) * c10::elementSize(dtype),
                    .count = is_barrier ? 0 : count,
                    .dtype = is_barrier ? "-" : name_of(dtype),
                    .op = collective.reduces ? options_.op : "-"};
    for (const auto& contender : all) {
      rows_.push_back(summarize(contender, sync_, model, collective.bus_factor(context_.world_size())));
      print(rows_.back());
    }
  }

  void print(const Row& row) const {
    if (!context_.is_main() || options_.format == Format::json) return;
    std::cout << (options_.format == Format::csv ? csv_line(row) : table_line(row)) << std::endl;
  }

  // What goes on, on one line of a terminal.
  void say(const std::string& text) const {
    if (context_.is_main() && Env().has("LOCKSTEP_BENCH_PROGRESS")) std::cerr << text << std::endl;
  }

  const Options& options_;
  const Context& context_;
  ProcessGroup sync_;
  std::map<std::string, ProcessGroup> groups_;
  std::optional<MemoryLimit> memory_;
  std::vector<Row> rows_;
};

int run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  for (const auto& name : options.collectives) (void)find_collective(name);
  at::set_num_threads(1);
  const auto context = init();
  if (options.bind) bind_to_core(context.local_rank());
  Bench(options, context).run();
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  try {
    return lockstep::bench::run(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    CLI::App app;
    std::cout << help.what() << std::endl;
    return 0;
  } catch (const std::exception& error) {
    lockstep::log(lockstep::LogLevel::error, error.what());
    return 2;
  }
}
