// SPDX-License-Identifier: BSD-3-Clause
// What `lockstep bench` does, as a plain MPI program: the same options, the same way of measuring, the same
// rows.
//   mpirun -n 2 --bind-to none mpi_collectives all-reduce,broadcast --sizes 1K:1M
// It binds its ranks itself, as lockstep bench does.
#include <algorithm>
#include <iostream>
#include <limits>
#include <mpi.h>
#include <utility>

#include <lockstep/base/error.h>

#include "base/host.h"
#include "collectives.h"
#include "lockstep_bench/kinds.h"
#include "lockstep_bench/options.h"
#include "lockstep_bench/rank.h"
#include "lockstep_bench/report.h"

namespace mpi_bench {
namespace {

namespace bench = lockstep::bench;

Buffer block_of(int rank) {
  Buffer block(static_cast<std::size_t>(bench::kBlock));
  for (std::size_t i = 0; i < block.size(); ++i) {
    block[i] = static_cast<float>(bench::pattern_value(rank, static_cast<std::int64_t>(i)));
  }
  return block;
}

std::int64_t largest(std::int64_t own) {
  std::int64_t all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

class Trial {
 public:
  Trial(const World& world, Case what)
      : by_clock_(world.by_clock),
        what_(std::move(what)),
        block_(block_of(world.rank)),
        input_(what_.input_count),
        output_(what_.output_count) {}

  double time_once() {
    bench::refill(input_.data(), input_.size() * sizeof(float), block_.data(), block_.size() * sizeof(float));
    bench::start_together(largest, by_clock_);
    const double begin = MPI_Wtime();
    what_.run(input_, output_);
    const double end = MPI_Wtime();
    MPI_Barrier(MPI_COMM_WORLD);
    return end - begin;
  }

  std::int64_t wrong_once() {
    std::ranges::fill(output_, 0.F);
    time_once();
    if (!what_.expected) return 0;
    const auto& result = what_.output_count > 0 ? output_ : input_;
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < result.size(); ++i)
      wrong += result[i] == static_cast<float>(what_.expected(i)) ? 0 : 1;
    return wrong;
  }

 private:
  bool by_clock_;
  Case what_;
  Buffer block_;
  Buffer input_;
  Buffer output_;
};

// As many timed calls as lockstep bench has, one after the other: there is nobody to take turns with.
bench::Row measure(const World& world, const Case& what, const bench::Options& options, bench::Row row,
                   double bus_factor) {
  Trial trial(world, what);
  std::int64_t wrong = options.check ? trial.wrong_once() : 0;
  for (int i = 0; i < options.warmup; ++i) trial.time_once();
  std::vector<double> spans;
  for (int i = 0; i < row.iterations; ++i) spans.push_back(trial.time_once());
  if (options.check) wrong += trial.wrong_once();
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, spans.data(), row.iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  row.memory = what.memory;
  row.wrong = options.check ? wrong : -1;
  return bench::with_times(row, spans, bus_factor);
}

void measure_size(const World& world, const bench::Kind& kind, std::size_t bytes,
                  const bench::Options& options, bench::Report& report) {
  const auto count = bench::element_count(kind, bytes, sizeof(float), world.size);
  if (count > std::numeric_limits<int>::max()) {
    throw lockstep::ArgumentError("MPI counts elements in an int: take smaller --sizes");
  }
  const bench::Row row{
      .collective = kind.name,
      .bytes = kind.moves_data ? static_cast<std::size_t>(count) * sizeof(float) : 0,
      .count = kind.moves_data ? count : 0,
      .dtype = kind.moves_data ? "float32" : "-",
      .op = kind.reduces ? "sum" : "-",
      .backend = "mpi",
      .ranks = world.size,
      .iterations = options.iterations > 0 ? options.iterations : bench::iterations_for(bytes)};
  for (const auto& what : cases_of(kind.name, world, static_cast<std::size_t>(count))) {
    report.add(measure(world, what, options, row, bench::bus_factor(kind, world.size)));
  }
}

// Rank and number of those on this host.
std::pair<int, int> local_ranks() {
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(host, &rank);
  MPI_Comm_size(host, &size);
  MPI_Comm_free(&host);
  return {rank, size};
}

void run(const std::vector<std::string>& arguments) {
  World world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  const auto [local_rank, local_size] = local_ranks();
  world.by_clock = bench::can_start_together(world.size, local_size, lockstep::usable_cores());
  const auto options = bench::parse_options(bench::Tool::mpi_collectives, arguments);
  if (options.bind) bench::bind_to_core(local_rank);
  bench::Report report(options.format, world.rank == 0 ? &std::cout : nullptr);
  report.begin(world.size);
  for (const auto& name : options.collectives) {
    const auto& kind = bench::find_kind(name);
    for (const auto bytes : options.sizes) {
      measure_size(world, kind, kind.moves_data ? bytes : 1, options, report);
      if (!kind.moves_data) break;
    }
  }
  report.finish();
}

}  // namespace
}  // namespace mpi_bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    mpi_bench::run({argv + 1, argv + argc});
  } catch (const lockstep::bench::HelpWanted& help) {
    std::cout << help.text << std::flush;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Finalize();
  return 0;
}
