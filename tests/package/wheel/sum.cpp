// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>

#include <lockstep/rendezvous/init.h>

at::Tensor some_picture();

int main() {
  const auto context = lockstep::init();
  const auto sum = at::ones({4});
  context.group().all_reduce(sum);
  return sum.sum().item<double>() == 4 * context.world_size() && some_picture().numel() > 0 ? 0 : 1;
}
