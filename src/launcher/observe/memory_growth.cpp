// SPDX-License-Identifier: BSD-3-Clause
#include "observe/memory_growth.h"

#include <algorithm>
#include <functional>
#include <span>

#include <fmt/format.h>

#include "observe/phrases.h"

namespace lockstep::observe {
namespace {

constexpr std::size_t kLeastSamples = 5;
constexpr std::int64_t kLeastGrowth = 256LL << 20;  // bytes
constexpr std::uint64_t kFirstSteps = 10;           // steps
constexpr std::int64_t kOld = 10'000'000'000;       // nanoseconds

// The samples after the first steps, which allocate what the others use again.
std::span<const MemorySample> samples_of(const Progress& progress) {
  const auto last_of_warm_up = std::ranges::find(progress.last, kFirstSteps, &Step::number);
  if (progress.steps <= kFirstSteps) return {};
  // Without this step, those of the warm-up are at most the first one.
  const auto begin = last_of_warm_up != progress.last.end() ? last_of_warm_up->ended_at : progress.began_at;
  const auto first = std::ranges::upper_bound(progress.memory, begin, {}, &MemorySample::at);
  return {first, progress.memory.end()};
}

// The last samples, each of which is larger than the one before.
std::span<const MemorySample> growing(std::span<const MemorySample> samples) {
  auto first = samples.size();
  while (first > 0 && (first == samples.size() || samples[first - 1].own() < samples[first].own())) --first;
  return samples.subspan(first);
}

struct Growth {
  const Rank* rank = nullptr;
  MemorySample first{};
  MemorySample last{};
  std::size_t samples = 0;

  std::int64_t bytes() const { return last.own() - first.own(); }
};

std::int64_t largest_increase(std::span<const MemorySample> samples) {
  std::int64_t largest = 0;
  for (std::size_t i = 1; i < samples.size(); ++i)
    largest = std::max(largest, samples[i].own() - samples[i - 1].own());
  return largest;
}

std::optional<Growth> growth_of(const Run& run, const Rank& rank) {
  if (!rank.progress || rank.life != Life::alive) return std::nullopt;
  const auto samples = growing(samples_of(*rank.progress));
  if (samples.size() < kLeastSamples || run.taken_at - samples.back().at > kOld) return std::nullopt;
  const Growth growth{&rank, samples.front(), samples.back(), samples.size()};
  const bool is_large = growth.bytes() >= std::max(kLeastGrowth, growth.first.own() / 4);
  if (!is_large || largest_increase(samples) > growth.bytes() / 2) return std::nullopt;
  return growth;
}

std::string mebibytes(std::int64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

std::string text_of(const std::vector<Growth>& all, const std::vector<int>& ranks) {
  const auto& growth = all.front();
  const auto time = growth.last.at - growth.first.at;
  const auto rate = static_cast<double>(growth.bytes()) / static_cast<double>(time) * 1e9;
  return fmt::format(
      "The memory of {} grows: from {} to {} in {}, {} a second{}, in each of its last {} samples. Tensors that are "
      "kept from step to step, such as a sum of losses with their graphs, are the most frequent cause: add "
      "loss.item<double>() or loss.detach() instead.",
      all.size() == 1 ? growth.rank->describe() : list_ranks(ranks), mebibytes(growth.first.own()),
      mebibytes(growth.last.own()), seconds_text(time), mebibytes(static_cast<std::int64_t>(rate)),
      all.size() == 1 ? "" : fmt::format(" on rank {}", growth.rank->rank), growth.samples);
}

}  // namespace

std::optional<Verdict> judge_memory(const Run& run) {
  std::vector<Growth> all;
  for (const auto& rank : run.ranks) {
    if (const auto growth = growth_of(run, rank)) all.push_back(*growth);
  }
  if (all.empty()) return std::nullopt;
  std::vector<int> ranks;
  for (const auto& growth : all) ranks.push_back(growth.rank->rank);
  std::ranges::sort(all, std::greater(), &Growth::bytes);
  return Verdict{Cause::memory, ranks, text_of(all, ranks)};
}

}  // namespace lockstep::observe
