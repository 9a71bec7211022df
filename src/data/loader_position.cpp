// SPDX-License-Identifier: BSD-3-Clause
#include <mutex>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/base/world.h>
#include <lockstep/data/loader_position.h>

#include "data/random_draw.h"

namespace lockstep::data {
namespace {

at::Generator chosen(const std::optional<at::Generator>& generator) {
  return generator ? *generator : at::detail::getDefaultCPUGenerator();
}

}  // namespace

at::Tensor generator_state(const std::optional<at::Generator>& generator) {
  auto used = chosen(generator);
  const std::lock_guard<std::mutex> lock(used.mutex());
  return used.get_state();
}

void set_generator_state(const std::optional<at::Generator>& generator, const at::Tensor& state) {
  auto used = chosen(generator);
  const std::lock_guard<std::mutex> lock(used.mutex());
  try {
    used.set_state(state);
  } catch (const c10::Error& error) {
    throw DataError(std::string("loader: this is no state of a generator: ") +
                    error.what_without_backtrace());
  }
}

std::unique_ptr<BatchStream> start_pass(const BatchSource& source,
                                        const std::optional<at::Generator>& generator,
                                        const std::optional<LoaderPosition>& resume,
                                        LoaderPosition& position) {
  const auto draw_and_start = [&](auto start) {
    // A thread that is a rank has a default generator that this layer does not see.
    if (generator || !is_thread_rank()) position.pass_generator = generator_state(generator);
    draw_seed(generator);  // before the sampler draws anything: the order in which Python does it
    return start();
  };
  if (!resume) {
    position.batches = position.samples = 0;
    return draw_and_start([&] { return source.iter(); });
  }
  if (!resume->pass_generator.defined() && source.draws_by_default()) {
    throw ArgumentError(
        "loader: the middle of a pass whose order came from the default generator cannot be found again in "
        "threads that are ranks; give the loader a seed or a generator");
  }
  // The order is drawn again as it was then. What else has been drawn since, from the default generator, is
  // not undone: a generator of the loader's own is by then where it was.
  position = *resume;
  if (!resume->pass_generator.defined()) return source.iter_from(resume->batches, resume->samples);
  const auto now = generator_state(std::nullopt);
  set_generator_state(generator, resume->pass_generator);
  auto stream = draw_and_start([&] { return source.iter_from(resume->batches, resume->samples); });
  if (!generator) set_generator_state(std::nullopt, now);
  return stream;
}

}  // namespace lockstep::data
