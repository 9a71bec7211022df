// SPDX-License-Identifier: BSD-3-Clause
// What `lockstep bench` does, as a plain MPI program: the same sizes, the same way of measuring, the same CSV rows.
//   mpirun -n 2 --bind-to core mpi_collectives all-reduce,broadcast 1024,65536 [iterations]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <mpi.h>

namespace {

constexpr int kWarmUps = 3;

struct World {
  int rank = 0;
  int size = 1;
};

struct Case {
  bool in_parts = false;
  double bus_factor = 1;
  std::function<void(const World&, std::vector<float>&, std::vector<float>&)> run = {};
  // The element that `output` must have at `index`, or a negative number where that is of no matter.
  std::function<float(const World&, std::size_t index, std::size_t part)> expected = {};
};

float value(int rank, std::size_t index) { return static_cast<float>(index % 5 + static_cast<std::size_t>(rank) + 1); }

float sum(const World& world, std::size_t index) {
  float total = 0;
  for (int rank = 0; rank < world.size; ++rank) total += value(rank, index);
  return total;
}

int parts(const World& world, const std::vector<float>& all) {
  return static_cast<int>(all.size() / static_cast<std::size_t>(world.size));
}

// `output` holds this rank's values before each call; calls that need two buffers read `input`.
std::map<std::string, Case> cases(const World& w) {
  const double ranks = w.size;
  const double once = (ranks - 1) / ranks;
  std::map<std::string, Case> all;
  all["all-reduce"] = {false, 2 * once,
                       [](const World&, auto&, auto& out) {
                         MPI_Allreduce(MPI_IN_PLACE, out.data(), static_cast<int>(out.size()), MPI_FLOAT, MPI_SUM,
                                       MPI_COMM_WORLD);
                       },
                       [](const World& world, std::size_t i, std::size_t) { return sum(world, i); }};
  all["broadcast"] = {false, 1,
                      [](const World&, auto&, auto& out) {
                        MPI_Bcast(out.data(), static_cast<int>(out.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
                      },
                      [](const World&, std::size_t i, std::size_t) { return value(0, i); }};
  all["reduce"] = {false, 1,
                   [](const World& world, auto&, auto& out) {
                     MPI_Reduce(world.rank == 0 ? MPI_IN_PLACE : out.data(), out.data(), static_cast<int>(out.size()),
                                MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
                   },
                   [](const World& world, std::size_t i, std::size_t) { return world.rank == 0 ? sum(world, i) : -1; }};
  all["all-gather"] = {true, once,
                       [](const World& world, auto& in, auto& out) {
                         MPI_Allgather(in.data(), parts(world, out), MPI_FLOAT, out.data(), parts(world, out), MPI_FLOAT,
                                       MPI_COMM_WORLD);
                       },
                       [](const World&, std::size_t i, std::size_t part) {
                         return value(static_cast<int>(i / part), i % part);
                       }};
  all["reduce-scatter"] = {true, once,
                           [](const World& world, auto& in, auto& out) {
                             MPI_Reduce_scatter_block(in.data(), out.data(), parts(world, in), MPI_FLOAT, MPI_SUM,
                                                      MPI_COMM_WORLD);
                           },
                           [](const World& world, std::size_t i, std::size_t part) {
                             return i < part ? sum(world, i + part * static_cast<std::size_t>(world.rank)) : -1;
                           }};
  all["all-to-all"] = {true, once,
                       [](const World& world, auto& in, auto& out) {
                         MPI_Alltoall(in.data(), parts(world, in), MPI_FLOAT, out.data(), parts(world, out), MPI_FLOAT,
                                      MPI_COMM_WORLD);
                       },
                       [](const World& world, std::size_t i, std::size_t part) {
                         return value(static_cast<int>(i / part), i % part + part * static_cast<std::size_t>(world.rank));
                       }};
  all["gather"] = {true, once,
                   [](const World& world, auto& in, auto& out) {
                     MPI_Gather(in.data(), parts(world, in), MPI_FLOAT, out.data(), parts(world, in), MPI_FLOAT, 0,
                                MPI_COMM_WORLD);
                   },
                   [](const World& world, std::size_t i, std::size_t part) {
                     return world.rank == 0 ? value(static_cast<int>(i / part), i % part) : -1;
                   }};
  all["scatter"] = {true, once,
                    [](const World& world, auto& in, auto& out) {
                      MPI_Scatter(in.data(), parts(world, in), MPI_FLOAT, out.data(), parts(world, in), MPI_FLOAT, 0,
                                  MPI_COMM_WORLD);
                    },
                    [](const World& world, std::size_t i, std::size_t part) {
                      return i < part ? value(0, i + part * static_cast<std::size_t>(world.rank)) : -1;
                    }};
  all["send-recv"] = {false, 1,
                      [](const World& world, auto& in, auto& out) {
                        const int next = (world.rank + 1) % world.size;
                        const int before = (world.rank + world.size - 1) % world.size;
                        MPI_Sendrecv(in.data(), static_cast<int>(in.size()), MPI_FLOAT, next, 0, out.data(),
                                     static_cast<int>(out.size()), MPI_FLOAT, before, 0, MPI_COMM_WORLD,
                                     MPI_STATUS_IGNORE);
                      },
                      [](const World& world, std::size_t i, std::size_t) {
                        return value((world.rank + world.size - 1) % world.size, i);
                      }};
  all["barrier"] = {false, 1, [](const World&, auto&, auto&) { MPI_Barrier(MPI_COMM_WORLD); },
                    [](const World&, std::size_t, std::size_t) { return -1.F; }};
  return all;
}

int iterations_for(std::size_t bytes) {
  constexpr std::size_t kMegabyte = 1UL << 20U;
  if (bytes <= kMegabyte / 16) return 1000;
  if (bytes <= kMegabyte) return 300;
  return bytes <= 16 * kMegabyte ? 60 : 20;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

void measure(const World& world, const std::string& name, const Case& what, std::size_t bytes, int wanted) {
  const std::size_t ranks = what.in_parts ? static_cast<std::size_t>(world.size) : 1;
  const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float) / ranks) * ranks;
  std::vector<float> pattern(count);
  for (std::size_t i = 0; i < count; ++i) pattern[i] = value(world.rank, i);
  std::vector<float> input(count);
  std::vector<float> output(count);
  const int iterations = wanted > 0 ? wanted : iterations_for(bytes);
  std::vector<double> spans;
  for (int i = -kWarmUps; i < iterations; ++i) {
    std::copy(pattern.begin(), pattern.end(), input.begin());
    std::copy(pattern.begin(), pattern.end(), output.begin());
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    what.run(world, input, output);
    if (i >= 0) spans.push_back(MPI_Wtime() - begin);
  }
  long wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float expected = what.expected(world, i, count / static_cast<std::size_t>(world.size));
    wrong += expected >= 0 && output[i] != expected ? 1 : 0;
  }
  long all_wrong = 0;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  std::vector<double> slowest(spans.size());
  MPI_Reduce(spans.data(), slowest.data(), iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (world.rank != 0) return;
  const double median = quantile(slowest, 0.5);
  const bool is_barrier = name == "barrier";
  const double rate = is_barrier ? 0 : static_cast<double>(count * sizeof(float)) / median / 1e9;
  std::printf("%s,%zu,%zu,%s,-,mpi,ordinary,%.3f,%.3f,%.3f,%.4f,%.4f,%ld\n", name.c_str(),
              is_barrier ? 0 : count * sizeof(float), is_barrier ? 0 : count, is_barrier ? "-" : "float32", median * 1e6,
              quantile(slowest, 0.1) * 1e6, quantile(slowest, 0.9) * 1e6, rate, rate * what.bus_factor, all_wrong);
  std::fflush(stdout);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  std::string word;
  while (std::getline(stream, word, ',')) words.push_back(word);
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  World world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  const auto known = cases(world);
  if (argc < 3) {
    std::fprintf(stderr, "usage: mpi_collectives COLLECTIVE[,...] BYTES[,...] [ITERATIONS]\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int iterations = argc > 3 ? std::atoi(argv[3]) : 0;
  for (const auto& name : split(argv[1])) {
    const auto found = known.find(name);
    if (found == known.end()) {
      std::fprintf(stderr, "there is no collective %s\n", name.c_str());
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (const auto& bytes : split(argv[2])) {
      measure(world, name, found->second, std::stoull(bytes), iterations);
      if (name == "barrier") break;
    }
  }
  MPI_Finalize();
  return 0;
}
