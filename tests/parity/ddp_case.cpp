// SPDX-License-Identifier: BSD-3-Clause
#include "parity/ddp_case.h"

#include <fmt/format.h>

namespace lockstep::testing {
namespace {

// Small enough for several buckets, of which each holds several parameters, in either net.
constexpr double kSmallBuckets = 0.004;

// Where gradients lie and what they are when backward starts decide which arithmetic the reducer uses.
std::vector<DdpCase> gradient_cases() {
  std::vector<DdpCase> cases;
  for (const bool view : {false, true}) {
    for (const bool to_none : {false, true}) {
      for (const int micro_steps : {1, 3}) {
        cases.push_back(
            {.name = fmt::format("view_{:d}_to_none_{:d}_micro_steps_{}", view, to_none, micro_steps),
             .net = "tied",
             .steps = 12,
             .micro_steps = micro_steps,
             .bucket_cap_mb = kSmallBuckets,
             .gradient_as_bucket_view = view,
             .set_to_none = to_none});
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<DdpCase> ddp_cases() {
  std::vector<DdpCase> cases{
      {.name = "mnist"},
      {.name = "mnist_in_buckets", .steps = 12, .bucket_cap_mb = 0.05, .gradient_as_bucket_view = true},
      {.name = "mnist_from_loader", .batch_size = 16, .seed_by_rank = true, .loader = true},
      {.name = "tied", .net = "tied", .steps = 120},
      {.name = "tied_seed_by_rank", .net = "tied", .steps = 12, .seed_by_rank = true},
      {.name = "tied_gradients_first",
       .net = "tied",
       .steps = 12,
       .gradient_as_bucket_view = true,
       .set_to_none = false,
       .gradients_first = true},
      {.name = "tied_probe", .net = "tied", .steps = 20, .micro_steps = 2, .probe_every = 3},
  };
  for (auto& each : gradient_cases()) cases.push_back(std::move(each));
  return cases;
}

std::string to_words(const DdpCase& each) {
  return fmt::format(
      "name={} net={} steps={} batch_size={} micro_steps={} probe_every={} bucket_cap_mb={} "
      "gradient_as_bucket_view={:d} set_to_none={:d} seed_by_rank={:d} gradients_first={:d} loader={:d}",
      each.name, each.net, each.steps, each.batch_size, each.micro_steps, each.probe_every,
      each.bucket_cap_mb, each.gradient_as_bucket_view, each.set_to_none, each.seed_by_rank,
      each.gradients_first, each.loader);
}

}  // namespace lockstep::testing
