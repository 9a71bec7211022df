// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <system_error>
#include <utility>

#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/distributed_metadata.h"
#include "checkpoint/share.h"
#include "comm/call_site.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

constexpr const char* kCheckpoint = "checkpoint";

using checkpointing::CheckpointFolder;
using checkpointing::Group;

void check(const CheckpointManagerOptions& options) {
  for (const auto& [name, value] :
       {std::pair{"keep_last", options.keep_last}, std::pair{"keep_best", options.keep_best},
        std::pair{"keep_every", options.keep_every}}) {
    if (value < 0)
      throw_error<ArgumentError>("CheckpointManager: {} = {} is negative; give 0 or more", name, value);
  }
}

// Reads a file, or the folder of a distributed checkpoint, which cannot be mapped.
Value read_checkpoint(const std::filesystem::path& file, const LoadOptions& options) {
  std::error_code code;
  if (!std::filesystem::is_directory(file, code)) return load(file, options);
  if (options.mmap) {
    throw_error<ArgumentError>(
        "{}: every rank wrote a part of it, so it cannot be mapped; load it without mmap", file.string());
  }
  Value contents;
  distributed_checkpoint::read_again_if_replaced(file, [&] {
    const distributed_checkpoint::Reader reader(file);
    if (options.verify) reader.verify();
    contents = reader.read_all(options.map_location);
  });
  return contents;
}

}  // namespace

// Note [The checkpoint manager]
//
// Joins three parts: CheckpointFolder (names, metrics, links and damaged checkpoints of the folder),
// CheckpointWriter (who writes, and in which thread; see notes [Saves by rank 0] and [Saves by every rank])
// and the loading functions below.
//
// Phases of a load: drain the writer; rank 0 lists the candidates; a candidate is verified, on rank 0 or with
// the ranks sharing the work; the choice and then the contents reach all ranks.
//
// Threads: every function runs in the caller's thread. Writers may start threads that use `folder_`; drain()
// ends them before a load or removal uses it.
//
// Invariants: each collective step ends with on_first() or on_every(), so all ranks continue or all throw the
// same error. Only damage makes a load skip a checkpoint. One that cannot be read may be intact, so its error
// propagates.
class CheckpointManager::Implementation {
 public:
  Implementation(std::filesystem::path path, const CheckpointManagerOptions& options)
      : options_(options),
        folder_(std::move(path)),
        group_(runtime::group_or_default(options_.process_group, "CheckpointManager")) {
    checkpointing::on_first(group_, [&] { folder_.make(options_.sync); });
    writer_ = options_.writing == CheckpointWriting::every_rank
                  ? checkpointing::write_on_every_rank(options_, folder_, group_)
                  : checkpointing::write_on_first_rank(options_, folder_, group_);
  }

  distributed_checkpoint::LoadOptions load_options() const {
    return {.process_group = group_, .no_dist = !group_};
  }
  Group sharers() const { return checkpointing::sharers(group_); }
  void check_group() const { runtime::require_made_in_run(group_, "CheckpointManager"); }

  std::optional<Checkpoint> load_first_whole(bool by_metric, const LoadOptions& options) {
    check_group();
    std::vector<CheckpointInfo> chosen;
    std::optional<Value> contents;
    writer_->drain();
    checkpointing::on_first(sharers(), [&] {
      auto candidates = candidates_for(by_metric);
      std::string reasons;
      for (auto& candidate : candidates) {
        contents = try_load(candidate, options, reasons);
        if (!contents) continue;
        folder_.found_whole(candidate.step);
        chosen.push_back(std::move(candidate));
        return;
      }
      if (!candidates.empty()) fail_all(candidates.size(), reasons);
    });
    const auto shared = shared_infos(chosen);
    if (shared.empty()) return std::nullopt;
    return Checkpoint{.info = shared[0], .contents = distribute(shared[0], std::move(contents), options)};
  }

  Checkpoint load(std::int64_t step, const LoadOptions& options) {
    check_group();
    std::vector<CheckpointInfo> chosen;
    std::optional<Value> contents;
    writer_->drain();
    checkpointing::on_first(sharers(), [&] {
      chosen.push_back(info_of(step));
      contents = read_checkpoint(chosen[0].file, first_look(options));
    });
    auto info = shared_infos(chosen).at(0);
    return {.info = info, .contents = distribute(info, std::move(contents), options)};
  }

  std::optional<CheckpointInfo> load_first_whole(bool by_metric, Dict& contents) {
    check_group();
    std::vector<CheckpointInfo> candidates;
    writer_->drain();
    checkpointing::on_first(sharers(), [&] { candidates = candidates_for(by_metric); });
    candidates = shared_infos(candidates);
    std::string reasons;
    for (auto& candidate : candidates) {
      if (const auto damage = damage_of(candidate)) {
        skip(candidate, *damage, reasons);
        continue;
      }
      folder_.found_whole(candidate.step);
      // A mismatch is not damage; skipping would hide it.
      distributed_checkpoint::load(contents, candidate.file, load_options());
      return candidate;
    }
    if (!candidates.empty()) fail_all(candidates.size(), reasons);
    return std::nullopt;
  }

  CheckpointInfo load(std::int64_t step, Dict& contents) {
    check_group();
    std::vector<CheckpointInfo> chosen;
    writer_->drain();
    checkpointing::on_first(sharers(), [&] { chosen.push_back(info_of(step)); });
    auto info = shared_infos(chosen).at(0);
    if (const auto damage = damage_of(info)) throw CheckpointError(*damage, {.file = info.file});
    distributed_checkpoint::load(contents, info.file, load_options());
    return info;
  }

  // In the order in which they are tried.
  std::vector<CheckpointInfo> candidates_for(bool by_metric) const {
    auto candidates = folder_.list();
    if (by_metric) return checkpointing::by_metric(std::move(candidates), options_.higher_is_better);
    std::ranges::reverse(candidates);
    return candidates;
  }

  CheckpointInfo info_of(std::int64_t step) const {
    const auto infos = folder_.list();
    const auto found = std::ranges::find(infos, step, &CheckpointInfo::step);
    if (found != infos.end()) return *found;
    throw_error<CheckpointError>("{}: there is no checkpoint of step {}", folder_.path().string(), step);
  }

  [[noreturn]] void fail_all(std::size_t count, const std::string& reasons) const {
    throw_error<CheckpointError>("{}: none of the {} checkpoints can be loaded:{}", folder_.path().string(),
                                 count, reasons);
  }

  void skip(const CheckpointInfo& info, const std::string& damage, std::string& reasons) {
    folder_.found_damaged(info.step);
    log(LogLevel::warning, fmt::format("skipping a damaged checkpoint: {}", damage));
    reasons += fmt::format("\n  {}", damage);
  }

  [[noreturn]] static void refuse_to_skip(const CheckpointReadError& error) {
    throw_error<CheckpointError>(
        error.details(),
        "{}; it may be intact, so no other checkpoint takes its place: try again when it can be read, or "
        "load(step) another checkpoint",
        error.what());
  }

  // The damage that any rank finds; the ranks share the verification. A failing disk or a lack of memory is
  // not damage, but an error of all ranks.
  std::optional<std::string> damage_of(const CheckpointInfo& info) const {
    std::string own;
    checkpointing::on_every(group_, [&] {
      check_is_folder(info);
      try {
        verify_share(info);
      } catch (const CheckpointReadError& error) {
        refuse_to_skip(error);
      } catch (const CheckpointError& error) {
        own = error.what();
      }
    });
    const auto all = checkpointing::gather_texts(group_, own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].empty()) continue;
      return all.size() == 1 ? own : fmt::format("rank {}: {}", rank, all[rank]);
    }
    return std::nullopt;
  }

  static void check_is_folder(const CheckpointInfo& info) {
    std::error_code code;
    if (!std::filesystem::is_regular_file(info.file, code)) return;
    throw_error<CheckpointError>(ErrorDetails{.file = info.file},
                                 "{}: rank 0 wrote it as one file; use load_latest() without an argument",
                                 info.file.string());
  }

  void verify_share(const CheckpointInfo& info) const {
    const std::size_t ranks = group_ ? static_cast<std::size_t>(group_->size()) : 1;
    distributed_checkpoint::read_again_if_replaced(info.file, [&] {
      distributed_checkpoint::Reader(info.file).verify(checkpointing::rank_of(group_), ranks);
    });
  }

  // If every rank reads the file, rank 0 only verifies it.
  LoadOptions first_look(LoadOptions options) const {
    options.verify = true;
    if (options_.reading == CheckpointReading::every_rank) options.map_location = at::kMeta;
    return options;
  }

  std::optional<Value> try_load(const CheckpointInfo& info, const LoadOptions& options,
                                std::string& reasons) {
    try {
      return read_checkpoint(info.file, first_look(options));
    } catch (const CheckpointReadError& error) {
      refuse_to_skip(error);
    } catch (const CheckpointError& error) {
      skip(info, error.what(), reasons);
      return std::nullopt;
    }
  }

  // Rank 0's on all ranks.
  std::vector<CheckpointInfo> shared_infos(const std::vector<CheckpointInfo>& own) const {
    List list;
    for (const auto& info : own) {
      const auto metric = info.metric ? Value(*info.metric) : Value();
      list.items.emplace_back(Tuple{info.step, !info.file.has_extension(), metric});
    }
    const auto all = load_bytes(checkpointing::share_text(sharers(), save_bytes(Value(std::move(list)))));
    std::vector<CheckpointInfo> infos;
    for (const auto& each : all.as_items()) {
      const auto& parts = each.as_items();
      auto& info = infos.emplace_back();
      info.step = parts[0].as_int();
      info.file = folder_.file_of(info.step, parts[1].as_bool());
      if (!parts[2].is<None>()) info.metric = parts[2].as_double();
    }
    return infos;
  }

  Value distribute(const CheckpointInfo& info, std::optional<Value> contents,
                   const LoadOptions& options) const {
    if (options_.reading == CheckpointReading::broadcast)
      return checkpointing::share_value(sharers(), contents ? *contents : Value(), options.map_location);
    checkpointing::on_every(group_, [&] {
      auto own = options;
      own.verify = true;
      contents = read_checkpoint(info.file, own);
    });
    return std::move(*contents);
  }

  CheckpointManagerOptions options_;
  CheckpointFolder folder_;
  Group group_;
  std::unique_ptr<checkpointing::CheckpointWriter> writer_;
};

CheckpointManager::CheckpointManager(std::filesystem::path folder, const CheckpointManagerOptions& options,
                                     std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  check(options);
  const ErrorFile about(folder);
  implementation_ = std::make_unique<Implementation>(std::move(folder), options);
}

CheckpointManager::~CheckpointManager() = default;

void CheckpointManager::save(std::int64_t step, const Value& contents, std::optional<double> metric,
                             std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  if (step < 0) throw_error<ArgumentError>("CheckpointManager: step {} is below 0", step);
  implementation_->check_group();
  implementation_->writer_->save(step, contents, metric);
}

void CheckpointManager::remove_after(std::int64_t step, std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  auto& own = *implementation_;
  own.check_group();
  own.writer_->drain();
  checkpointing::on_first(own.group_,
                          [&] { checkpointing::remove_after(own.options_, own.folder_, own.info_of(step)); });
}

void CheckpointManager::wait(std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  implementation_->writer_->wait();
}

std::vector<CheckpointInfo> CheckpointManager::checkpoints() const { return implementation_->folder_.list(); }

std::optional<Checkpoint> CheckpointManager::load_latest(const LoadOptions& options,
                                                         std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  return implementation_->load_first_whole(false, options);
}

std::optional<Checkpoint> CheckpointManager::load_best(const LoadOptions& options,
                                                       std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  return implementation_->load_first_whole(true, options);
}

Checkpoint CheckpointManager::load(std::int64_t step, const LoadOptions& options,
                                   std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  return implementation_->load(step, options);
}

std::optional<CheckpointInfo> CheckpointManager::load_latest(Dict& contents, std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  return implementation_->load_first_whole(false, contents);
}

std::optional<CheckpointInfo> CheckpointManager::load_best(Dict& contents, std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  return implementation_->load_first_whole(true, contents);
}

CheckpointInfo CheckpointManager::load(std::int64_t step, Dict& contents, std::source_location where) {
  const comm::CallSite site(where, kCheckpoint);
  const ErrorFile about(folder());
  const PhaseScope phase(Phase::checkpoint);
  return implementation_->load(step, contents);
}

const std::filesystem::path& CheckpointManager::folder() const { return implementation_->folder_.path(); }

}  // namespace lockstep
