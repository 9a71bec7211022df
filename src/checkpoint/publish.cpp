// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include "checkpoint/checkpoint_writer.h"
#include "serialize/errors.h"

namespace lockstep::checkpointing {
namespace {

std::vector<CheckpointInfo> with_new(std::vector<CheckpointInfo> infos, const CheckpointInfo& info) {
  std::erase_if(infos, [&](const CheckpointInfo& each) { return each.step == info.step; });
  infos.push_back(info);
  std::ranges::sort(infos, {}, &CheckpointInfo::step);
  return infos;
}

// Updates links first, so that they never point at a removed or damaged checkpoint.
void remove_checkpoints(const CheckpointManagerOptions& options, const CheckpointFolder& folder,
                        std::vector<CheckpointInfo> infos, const std::vector<CheckpointInfo>& removed) {
  std::erase_if(infos, [&](const CheckpointInfo& each) {
    return std::ranges::find(removed, each.step, &CheckpointInfo::step) != removed.end();
  });
  const auto whole = without(std::move(infos), folder.damaged());
  const auto best = by_metric(whole, options.higher_is_better);
  folder.link("last", whole.empty() ? std::nullopt : std::optional(whole.back().file));
  folder.link("best", best.empty() ? std::nullopt : std::optional(best.front().file));
  for (const auto& each : removed) folder.remove(each);
}

}  // namespace

void publish(const CheckpointManagerOptions& options, CheckpointFolder& folder, const CheckpointInfo& info,
             const std::function<void()>& write) {
  folder.make(options.sync);
  const auto before = folder.list();
  const auto infos = with_new(before, info);
  // A new checkpoint's metric is written first, because retention might remove a checkpoint without one. A
  // replaced checkpoint keeps its metric until it is replaced.
  const bool is_new = std::ranges::find(before, info.step, &CheckpointInfo::step) == before.end();
  if (is_new) folder.write_metrics(infos, options.sync);
  write();
  folder.found_whole(info.step);
  if (!is_new) folder.write_metrics(infos, options.sync);
  remove_checkpoints(options, folder, infos, to_remove(infos, folder.damaged(), info.step, options));
  // A checkpoint of the same step by another kind of writer.
  for (const auto& each : before) {
    if (each.step == info.step && each.file != info.file) folder.remove(each);
  }
}

void remove_after(const CheckpointManagerOptions& options, const CheckpointFolder& folder,
                  const CheckpointInfo& info) {
  const auto infos = folder.list();
  const auto first = std::ranges::upper_bound(infos, info.step, {}, &CheckpointInfo::step);
  remove_checkpoints(options, folder, infos, {first, infos.end()});
  const auto left = folder.list();
  folder.write_metrics(left, options.sync);
  if (left.empty() || left.back().step <= info.step) return;
  throw_error("{}: cannot be removed, so it is still the latest checkpoint", left.back().file.string());
}

}  // namespace lockstep::checkpointing
