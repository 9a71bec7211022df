// SPDX-License-Identifier: BSD-3-Clause
// All-reduce over the backend mpi beside the functions of MPI that it calls, in the same processes and
// alternating slices of calls, so that both have the same thread mode and the same disturbances:
//   mpirun -n 2 --bind-to none mpi_all_reduce
// Prints a JSON object for each size and form. Needs LOCKSTEP_MPI_MODULE or the module beside the program.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <mpi.h>
#include <vector>

#include <ATen/ops/zeros.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/default_group.h>

#include "lockstep_bench/rank.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSlices = 21;
constexpr int kSliceBytes = 50 << 20;
constexpr int kMostCalls = 5'000;

double microseconds_of(const std::function<void()>& call, int calls) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + kSlices / 2);
  return values[kSlices / 2];
}

void compare(const char* form, std::int64_t bytes, const std::function<void()>& plain,
             const std::function<void()>& ours) {
  const int calls = std::clamp(static_cast<int>(kSliceBytes / bytes), 1, kMostCalls);
  std::vector<double> plain_times, our_times;
  microseconds_of(plain, calls);
  microseconds_of(ours, calls);
  for (int slice = 0; slice < kSlices; ++slice) {
    plain_times.push_back(microseconds_of(plain, calls));
    our_times.push_back(microseconds_of(ours, calls));
  }
  if (lockstep::get_rank() != 0) return;
  std::cout << "{\"form\": \"" << form << "\", \"bytes\": " << bytes
            << ", \"mpi_microseconds\": " << median(std::move(plain_times))
            << ", \"lockstep_microseconds\": " << median(std::move(our_times)) << "}" << std::endl;
}

void run() {
  const auto context = lockstep::init({.backend = "mpi"});
  const auto group = context.group();
  lockstep::bench::bind_to_core(context.local_rank());
  for (const std::int64_t bytes : {1 << 10, 64 << 10, 1 << 20, 25 << 20}) {
    const auto tensor = at::zeros({bytes / 4});  // whose sum is the same
    const auto count = static_cast<int>(tensor.numel());
    auto* const data = tensor.mutable_data_ptr();
    compare(
        "blocking", bytes,
        [&] { MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
        [&] { group.all_reduce(tensor); });
    compare(
        "non-blocking", bytes,
        [&] {
          MPI_Request request = MPI_REQUEST_NULL;
          MPI_Iallreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
          MPI_Wait(&request, MPI_STATUS_IGNORE);
        },
        [&] { group.all_reduce_async(tensor).wait(); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
