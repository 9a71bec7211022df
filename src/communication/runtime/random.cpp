// SPDX-License-Identifier: BSD-3-Clause
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <lockstep/runtime/random.h>

#include "intercept/thread_defaults.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

void seed_generator(at::Generator generator, std::uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

at::Generator default_generator() {
  if (auto own = intercept::ThreadGenerator::current()) return *own;
  return at::detail::getDefaultCPUGenerator();
}

void manual_seed(std::uint64_t seed) {
  const auto own = intercept::ThreadGenerator::current();
  if (!own) {
    at::manual_seed(seed);
    return;
  }
  seed_generator(*own, seed);
  const auto* const run = runtime::current_run();
  if (run == nullptr || run->device().is_cpu()) return;
  seed_generator(at::globalContext().defaultGenerator(run->device()), seed);
}

void manual_seed(std::uint64_t seed, const DeviceMesh& mesh, const std::vector<std::string>& apart) {
  std::uint64_t stream = 0;
  for (const auto& dim : apart) {
    stream = stream * static_cast<std::uint64_t>(mesh.size(dim)) +
             static_cast<std::uint64_t>(mesh.get_local_rank(dim));
  }
  // Far apart, also from the streams of the next seeds.
  manual_seed(seed + (stream + 1) * 0x9E3779B97F4A7C15);
}

}  // namespace lockstep
