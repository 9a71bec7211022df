// SPDX-License-Identifier: BSD-3-Clause
#include <initializer_list>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <lockstep/data/loader_options.h>

#include "base/launched_rank.h"
#include "base/throw_error.h"
#include "device/generators.h"

namespace lockstep::data {
namespace {

void check_options(const DataLoaderOptions& options) {
  const bool shuffle = options.shuffle.value_or(false);
  if (options.batch_sampler && (options.batch_size || shuffle || options.sampler || options.seed ||
                                options.drop_last.value_or(false))) {
    throw ArgumentError(
        "DataLoader: batch_sampler excludes batch_size, shuffle, sampler, seed and drop_last; it already "
        "determines the batches");
  }
  if (options.sampler && shuffle) {
    throw ArgumentError("DataLoader: sampler excludes shuffle; the sampler already decides the order");
  }
  if (options.sampler && options.seed) {
    throw ArgumentError("DataLoader: sampler excludes seed; give the seed to the sampler");
  }
}

std::shared_ptr<Sampler> default_sampler(std::int64_t dataset_size, const DataLoaderOptions& options) {
  const bool shuffle = options.shuffle.value_or(false);
  const World world = options.distributed ? shared_world("DataLoader") : World{};
  DistributedSamplerOptions sharing{.shuffle = shuffle, .seed = options.seed.value_or(0)};
  if (world.size > 1) return std::make_shared<DistributedSampler>(dataset_size, sharing);
  if (shuffle && options.seed) {
    sharing.num_replicas = 1;
    sharing.rank = 0;
    return std::make_shared<DistributedSampler>(dataset_size, sharing);
  }
  if (!shuffle) return std::make_shared<SequentialSampler>(dataset_size);
  return std::make_shared<RandomSampler>(dataset_size, RandomSamplerOptions{.generator = options.generator});
}

at::Generator generator_or_default(const std::optional<at::Generator>& generator) {
  return generator ? *generator : at::detail::getDefaultCPUGenerator();
}

void set_generator_state(const std::optional<at::Generator>& generator, const at::Tensor& state) {
  try {
    device::set_state(generator_or_default(generator), state);
  } catch (const c10::Error& error) {
    throw DataError(std::string("loader: this is not the state of a generator: ") +
                    error.what_without_backtrace());
  }
}

thread_local std::optional<SampleSeeds> thread_seeds;

// The output function of SplitMix64, chained over the parts.
std::uint64_t mix_seed(std::uint64_t base, std::initializer_list<std::int64_t> parts) {
  const auto mixed = [](std::uint64_t value) {
    value += 0x9e3779b97f4a7c15U;
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31U);
  };
  auto seed = mixed(base);
  for (const auto part : parts) seed = mixed(seed ^ static_cast<std::uint64_t>(part));
  return seed;
}

}  // namespace

std::shared_ptr<BatchSource> make_batch_source(std::int64_t dataset_size, const DataLoaderOptions& options) {
  check_options(options);
  if (dataset_size <= 0) throw ArgumentError("DataLoader: the dataset is empty; there is nothing to load");
  if (options.batch_sampler) return options.batch_sampler;
  std::shared_ptr<Sampler> sampler = options.sampler;
  if (!sampler) sampler = default_sampler(dataset_size, options);
  return std::make_shared<BatchSampler>(std::move(sampler), options.batch_size.value_or(1),
                                        options.drop_last.value_or(false));
}

std::uint64_t SampleSeeds::seed_of(std::int64_t index) const {
  return mix_seed(base, {epoch, passes, index});
}

std::optional<at::Generator> sample_generator(std::int64_t index) {
  if (!thread_seeds) return std::nullopt;
  return device::seeded_generator(thread_seeds->seed_of(index));
}

SampleSeedsScope::SampleSeedsScope(const std::optional<SampleSeeds>& seeds)
    : outer_(std::exchange(thread_seeds, seeds)) {}

SampleSeedsScope::~SampleSeedsScope() { thread_seeds = outer_; }

std::uint64_t BatchSeeds::seed_of(std::int64_t batch) const {
  return mix_seed(base, {epoch, passes, rank, batch});
}

void LoaderProgress::set_epoch(std::int64_t epoch) {
  if (resume_ && resume_->epoch != epoch) resume_.reset();
  if (position_.epoch == epoch) return;
  passes_started_ = 0;
  position_ = LoaderPosition{.epoch = epoch, .base_seed = kept_base_seed_};
}

LoaderPosition LoaderProgress::position() const {
  auto now = resume_ ? *resume_ : position_;
  if (generator_) now.own_generator = device::state_of(*generator_);
  return now;
}

void LoaderProgress::seek(const LoaderPosition& position) {
  resume_.reset();
  position_ =
      LoaderPosition{.epoch = position.epoch, .passes = position.passes, .base_seed = position.base_seed};
  passes_started_ = position.passes;
  kept_base_seed_ = position.base_seed;
  if (generator_ && position.own_generator.defined()) set_generator_state(generator_, position.own_generator);
  if (position.batches > 0) resume_ = position;
}

LoaderProgress::Start LoaderProgress::start(const BatchSource& source) {
  const auto from = resume_;
  auto stream = from ? resume(source, *from) : begin(source);
  resume_.reset();  // not before: a pass that could not be resumed is not begun anew by the next call
  if (keep_base_seed_) kept_base_seed_ = base_seed_;
  const World world = current_world();
  // With several ranks the base comes from the seed, because a checkpoint has the generator of one rank only.
  const bool use_seed = seed_ || world.size > 1 || is_thread_rank();
  const auto base = use_seed ? seed_.value_or(0) : base_seed_;
  return {.stream = std::move(stream),
          .seeds = {.base = static_cast<std::uint64_t>(base),
                    .epoch = position_.epoch,
                    .passes = position_.passes,
                    .rank = world.rank},
          .first_batch = position_.batches};
}

void LoaderProgress::draw_base_seed() {
  // The default generator of a thread rank is not part of a checkpoint.
  if (generator_ || !is_thread_rank())
    position_.pass_generator = device::state_of(generator_or_default(generator_));
  // Python draws it before the sampler draws.
  base_seed_ = position_.base_seed ? *position_.base_seed : device::draw_seed(generator_);
}

std::unique_ptr<BatchStream> LoaderProgress::begin(const BatchSource& source) {
  position_ =
      LoaderPosition{.epoch = position_.epoch, .passes = passes_started_++, .base_seed = kept_base_seed_};
  draw_base_seed();
  return source.iter();
}

std::unique_ptr<BatchStream> LoaderProgress::resume(const BatchSource& source, const LoaderPosition& from) {
  if (!from.pass_generator.defined() && source.uses_default_generator()) {
    throw ArgumentError(
        "loader: a thread rank cannot resume a pass whose order came from the default generator; give the "
        "loader a seed or a generator");
  }
  // Draws the order again from the generator's state at the start of the pass. A generator of the loader's
  // own ends in its saved state; the default generator keeps its current state.
  position_ = from;
  passes_started_ = from.passes + 1;
  if (!from.pass_generator.defined()) return source.iter_from(from.batches, from.samples);
  const auto now = device::state_of(generator_or_default({}));
  set_generator_state(generator_, from.pass_generator);
  draw_base_seed();
  auto stream = source.iter_from(from.batches, from.samples);
  if (!generator_) set_generator_state(std::nullopt, now);
  return stream;
}

void LoaderProgress::count(std::int64_t samples) {
  position_.batches += 1;
  position_.samples += samples;
}

void LoaderProgress::finish() {
  position_ =
      LoaderPosition{.epoch = position_.epoch, .passes = passes_started_, .base_seed = kept_base_seed_};
}

}  // namespace lockstep::data
