// SPDX-License-Identifier: BSD-3-Clause
// Every rank contributes its number; every rank gets the sum.
//
//   lockstep run --nproc-per-node 4 build/release/bin/01_hello_allreduce
#include <iostream>
#include <sstream>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

int main() {
  try {
    const auto context = lockstep::init();
    auto tensor = torch::full({1}, context.rank() + 1, torch::TensorOptions().device(context.device()));
    context.group().all_reduce(tensor);

    std::ostringstream line;
    line << "rank " << context.rank() << " of " << context.world_size() << ": the sum is "
         << tensor.item<float>() << '\n';
    std::cout << line.str() << std::flush;
  } catch (const std::exception& error) {
    std::cerr << "01_hello_allreduce: " << error.what() << '\n';
    return 1;
  }
}
