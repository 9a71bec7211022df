// SPDX-License-Identifier: BSD-3-Clause
#include "collectives.h"

#include <map>
#include <mpi.h>

#include "lockstep_bench/rank.h"

namespace mpi_bench {
namespace {

const MPI_Comm kAll = MPI_COMM_WORLD;

std::int64_t value(int rank, std::size_t index) {
  return lockstep::bench::pattern_value(rank, static_cast<std::int64_t>(index));
}

std::int64_t sum(int ranks, std::size_t index) {
  std::int64_t total = 0;
  for (int rank = 0; rank < ranks; ++rank) total += value(rank, index);
  return total;
}

int size_of(const Buffer& buffer) { return static_cast<int>(buffer.size()); }

std::vector<Case> all_reduce(const World& w, std::size_t count) {
  const auto expected = [=](std::size_t i) { return sum(w.size, i); };
  const auto in_place = [](Buffer& in, Buffer&) {
    MPI_Allreduce(MPI_IN_PLACE, in.data(), size_of(in), MPI_FLOAT, MPI_SUM, kAll);
  };
  const auto separate = [](Buffer& in, Buffer& out) {
    MPI_Allreduce(in.data(), out.data(), size_of(in), MPI_FLOAT, MPI_SUM, kAll);
  };
  return {{.input_count = count, .run = in_place, .expected = expected},
          {.memory = "separate",
           .input_count = count,
           .output_count = count,
           .run = separate,
           .expected = expected}};
}

std::vector<Case> broadcast(const World&, std::size_t count) {
  return {{.input_count = count,
           .run = [](Buffer& in, Buffer&) { MPI_Bcast(in.data(), size_of(in), MPI_FLOAT, 0, kAll); },
           .expected = [](std::size_t i) { return value(0, i); }}};
}

std::vector<Case> reduce(const World& w, std::size_t count) {
  Case one{.input_count = count};
  if (w.rank == 0) {
    one.run = [](Buffer& in, Buffer&) {
      MPI_Reduce(MPI_IN_PLACE, in.data(), size_of(in), MPI_FLOAT, MPI_SUM, 0, kAll);
    };
    one.expected = [=](std::size_t i) { return sum(w.size, i); };
  } else {
    one.run = [](Buffer& in, Buffer&) {
      MPI_Reduce(in.data(), nullptr, size_of(in), MPI_FLOAT, MPI_SUM, 0, kAll);
    };
  }
  return {one};
}

std::vector<Case> all_gather(const World& w, std::size_t count) {
  const auto part = count / static_cast<std::size_t>(w.size);
  return {{.input_count = part,
           .output_count = count,
           .run =
               [](Buffer& in, Buffer& out) {
                 MPI_Allgather(in.data(), size_of(in), MPI_FLOAT, out.data(), size_of(in), MPI_FLOAT, kAll);
               },
           .expected = [=](std::size_t i) { return value(static_cast<int>(i / part), i % part); }}};
}

std::vector<Case> reduce_scatter(const World& w, std::size_t count) {
  const auto part = count / static_cast<std::size_t>(w.size);
  const auto first = part * static_cast<std::size_t>(w.rank);
  return {{.input_count = count,
           .output_count = part,
           .run =
               [](Buffer& in, Buffer& out) {
                 MPI_Reduce_scatter_block(in.data(), out.data(), size_of(out), MPI_FLOAT, MPI_SUM, kAll);
               },
           .expected = [=](std::size_t i) { return sum(w.size, first + i); }}};
}

std::vector<Case> all_to_all(const World& w, std::size_t count) {
  const auto part = count / static_cast<std::size_t>(w.size);
  const auto first = part * static_cast<std::size_t>(w.rank);
  const int each = static_cast<int>(part);
  return {{.input_count = count,
           .output_count = count,
           .run =
               [=](Buffer& in, Buffer& out) {
                 MPI_Alltoall(in.data(), each, MPI_FLOAT, out.data(), each, MPI_FLOAT, kAll);
               },
           .expected = [=](std::size_t i) { return value(static_cast<int>(i / part), first + i % part); }}};
}

std::vector<Case> gather(const World& w, std::size_t count) {
  const auto part = count / static_cast<std::size_t>(w.size);
  return {{.input_count = part,
           .output_count = w.rank == 0 ? count : 0,
           .run =
               [](Buffer& in, Buffer& out) {
                 MPI_Gather(in.data(), size_of(in), MPI_FLOAT, out.data(), size_of(in), MPI_FLOAT, 0, kAll);
               },
           .expected = w.rank > 0 ? nullptr : std::function<std::int64_t(std::size_t)>([=](std::size_t i) {
             return value(static_cast<int>(i / part), i % part);
           })}};
}

std::vector<Case> scatter(const World& w, std::size_t count) {
  const auto part = count / static_cast<std::size_t>(w.size);
  const auto first = part * static_cast<std::size_t>(w.rank);
  return {{.input_count = w.rank == 0 ? count : 0,
           .output_count = part,
           .run =
               [](Buffer& in, Buffer& out) {
                 MPI_Scatter(in.data(), size_of(out), MPI_FLOAT, out.data(), size_of(out), MPI_FLOAT, 0,
                             kAll);
               },
           .expected = [=](std::size_t i) { return value(0, first + i); }}};
}

std::vector<Case> send_recv(const World& w, std::size_t count) {
  const int next = (w.rank + 1) % w.size;
  const int before = (w.rank + w.size - 1) % w.size;
  return {{.input_count = count,
           .output_count = count,
           .run =
               [=](Buffer& in, Buffer& out) {
                 MPI_Sendrecv(in.data(), size_of(in), MPI_FLOAT, next, 0, out.data(), size_of(out), MPI_FLOAT,
                              before, 0, kAll, MPI_STATUS_IGNORE);
               },
           .expected = [=](std::size_t i) { return value(before, i); }}};
}

std::vector<Case> barrier(const World&, std::size_t) {
  return {{.memory = "-", .run = [](Buffer&, Buffer&) { MPI_Barrier(kAll); }}};
}

}  // namespace

std::vector<Case> cases_of(const std::string& collective, const World& world, std::size_t count) {
  static const std::map<std::string, std::vector<Case> (*)(const World&, std::size_t)> all{
      {"all-reduce", all_reduce}, {"all-gather", all_gather}, {"reduce-scatter", reduce_scatter},
      {"broadcast", broadcast},   {"reduce", reduce},         {"gather", gather},
      {"scatter", scatter},       {"all-to-all", all_to_all}, {"send-recv", send_recv},
      {"barrier", barrier}};
  return all.at(collective)(world, count);
}

}  // namespace mpi_bench
