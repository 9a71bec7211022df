// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/rendezvous/init.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/read_checkpoint.h"
#include "checkpoint/share.h"

namespace lockstep {
namespace {

using checkpointing::CheckpointFolder;
using checkpointing::Group;

void check(const CheckpointManagerOptions& options) {
  const auto refuse_negative = [](const char* name, std::int64_t value) {
    if (value < 0) {
      throw ArgumentError(
          fmt::format("CheckpointManager: {} = {} makes no sense; give 0 or more", name, value));
    }
  };
  refuse_negative("keep_last", options.keep_last);
  refuse_negative("keep_best", options.keep_best);
  refuse_negative("keep_every", options.keep_every);
}

Group group_of(const CheckpointManagerOptions& options) {
  if (options.group) return options.group;
  return is_initialized() ? Group(default_group()) : std::nullopt;
}

constexpr char kInParts = 'p';
constexpr char kInOneFile = 'f';

// "" stands for none.
std::string text_of(const std::optional<CheckpointInfo>& info) {
  if (!info) return "";
  return fmt::format("{} {}{}", info->step, info->file.has_extension() ? kInOneFile : kInParts,
                     info->metric ? fmt::format("{}", *info->metric) : "-");
}

}  // namespace

class CheckpointManager::Implementation {
 public:
  Implementation(std::filesystem::path path, CheckpointManagerOptions options)
      : options_(std::move(options)), folder_(std::move(path)), group_(group_of(options_)) {
    checkpointing::on_first(group_, [&] { folder_.make(options_.sync); });
    writer_ = options_.writing == CheckpointWriting::every_rank
                  ? checkpointing::write_on_every_rank(options_, folder_, group_)
                  : checkpointing::write_on_first_rank(options_, folder_, group_);
  }

  void save(std::int64_t step, const Value& contents, std::optional<double> metric) {
    if (step < 0) throw ArgumentError(fmt::format("CheckpointManager: step {} is below 0", step));
    writer_->save(step, contents, metric);
  }

  void remove_after(std::int64_t step) {
    writer_->settle();
    checkpointing::on_first(group_, [&] { checkpointing::remove_after(options_, folder_, info_of(step)); });
  }

  void wait() { writer_->wait(); }

  std::vector<CheckpointInfo> list() const { return folder_.list(); }
  const std::filesystem::path& path() const { return folder_.path(); }

  std::optional<Checkpoint> load_first_whole(bool by_metric, const LoadOptions& options) {
    std::optional<CheckpointInfo> chosen;
    std::optional<Value> contents;
    writer_->settle();
    checkpointing::on_first(group_, [&] {
      auto candidates = candidates_for(by_metric);
      std::string reasons;
      for (auto& candidate : candidates) {
        contents = try_load(candidate, options, reasons);
        if (!contents) continue;
        folder_.found_whole(candidate.step);
        chosen = std::move(candidate);
        return;
      }
      if (!candidates.empty()) fail_all(candidates.size(), reasons);
    });
    chosen = shared(chosen);
    if (!chosen) return std::nullopt;
    return Checkpoint{.info = *chosen, .contents = distribute(*chosen, std::move(contents), options)};
  }

  Checkpoint load(std::int64_t step, const LoadOptions& options) {
    std::optional<CheckpointInfo> chosen;
    std::optional<Value> contents;
    writer_->settle();
    checkpointing::on_first(group_, [&] {
      chosen = info_of(step);
      contents = checkpointing::read_checkpoint(chosen->file, first_look(options));
    });
    chosen = shared(chosen);
    return {.info = *chosen, .contents = distribute(*chosen, std::move(contents), options)};
  }

  std::optional<CheckpointInfo> load_first_whole(bool by_metric, Dict& contents) {
    std::vector<CheckpointInfo> candidates;
    writer_->settle();
    checkpointing::on_first(group_, [&] { candidates = candidates_for(by_metric); });
    const auto count = std::stoull(checkpointing::share_text(group_, fmt::format("{}", candidates.size())));
    candidates.resize(count);
    std::string reasons;
    for (auto& candidate : candidates) {
      candidate = *shared(candidate);
      if (const auto damage = damage_of(candidate)) {
        pass_over(candidate, *damage, reasons);
        continue;
      }
      folder_.found_whole(candidate.step);
      // What does not fit is no damage: an older one would hide it.
      distributed_checkpoint::load(contents, candidate.file, group_);
      return candidate;
    }
    if (count > 0) fail_all(count, reasons);
    return std::nullopt;
  }

  CheckpointInfo load(std::int64_t step, Dict& contents) {
    std::optional<CheckpointInfo> chosen;
    writer_->settle();
    checkpointing::on_first(group_, [&] { chosen = info_of(step); });
    chosen = shared(chosen);
    if (const auto damage = damage_of(*chosen)) throw CheckpointError(*damage);
    distributed_checkpoint::load(contents, chosen->file, group_);
    return *chosen;
  }

 private:
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
    throw CheckpointError(fmt::format("{}: there is no checkpoint of step {}", path().string(), step));
  }

  [[noreturn]] void fail_all(std::size_t count, const std::string& reasons) const {
    throw CheckpointError(
        fmt::format("{}: none of the {} checkpoints can be loaded:{}", path().string(), count, reasons));
  }

  void pass_over(const CheckpointInfo& info, const std::string& damage, std::string& reasons) {
    folder_.found_damaged(info.step);
    log(LogLevel::warning, fmt::format("a checkpoint is passed over: {}", damage));
    reasons += fmt::format("\n  {}", damage);
  }

  [[noreturn]] static void refuse_to_pass_over(const CheckpointReadError& error) {
    throw CheckpointError(fmt::format(
        "{}; it may be whole, so that no other checkpoint is taken in its place: call again once it can "
        "be read, or load(step) another one",
        error.what()));
  }

  // What any rank finds; the ranks share the comparing of checksums. A disk that fails, memory that is short
  // and the like are no damage, but a failure of all.
  std::optional<std::string> damage_of(const CheckpointInfo& info) const {
    std::string own;
    checkpointing::on_every(group_, [&] {
      check_is_folder(info);
      try {
        verify_share(info);
      } catch (const CheckpointReadError& error) {
        refuse_to_pass_over(error);
      } catch (const CheckpointError& error) {
        own = error.what();
      }
    });
    if (!group_ || group_->size() == 1) return own.empty() ? std::nullopt : std::optional(own);
    const auto all = group_->all_gather_object(own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].empty()) return fmt::format("rank {}: {}", rank, all[rank]);
    }
    return std::nullopt;
  }

  static void check_is_folder(const CheckpointInfo& info) {
    std::error_code code;
    if (!std::filesystem::is_regular_file(info.file, code)) return;
    throw CheckpointError(
        fmt::format("{}: it is no folder that every rank wrote to; use load_latest() without "
                    "an argument for what rank 0 wrote",
                    info.file.string()));
  }

  void verify_share(const CheckpointInfo& info) const {
    const std::size_t rank = group_ ? static_cast<std::size_t>(group_->rank()) : 0;
    const std::size_t ranks = group_ ? static_cast<std::size_t>(group_->size()) : 1;
    checkpointing::read_again_if_replaced(
        info.file, [&] { distributed_checkpoint::Reader(info.file).verify(rank, ranks); });
  }

  // Where every rank reads for itself, rank 0 only looks whether the file is whole.
  LoadOptions first_look(LoadOptions options) const {
    options.verify = true;
    if (options_.reading == CheckpointReading::every_rank) options.map_location = at::kMeta;
    return options;
  }

  std::optional<Value> try_load(const CheckpointInfo& info, const LoadOptions& options,
                                std::string& reasons) {
    try {
      return checkpointing::read_checkpoint(info.file, first_look(options));
    } catch (const CheckpointReadError& error) {
      refuse_to_pass_over(error);
    } catch (const CheckpointError& error) {
      pass_over(info, error.what(), reasons);
      return std::nullopt;
    }
  }

  // Rank 0's choice on all ranks.
  std::optional<CheckpointInfo> shared(const std::optional<CheckpointInfo>& chosen) const {
    const auto text = checkpointing::share_text(group_, text_of(chosen));
    if (text.empty()) return std::nullopt;
    const auto space = text.find(' ');
    CheckpointInfo info;
    std::from_chars(text.data(), text.data() + space, info.step);
    info.file = folder_.file_of(info.step, text[space + 1] == kInParts);
    double metric = 0;
    const auto [stop, code] = std::from_chars(text.data() + space + 2, text.data() + text.size(), metric);
    if (code == std::errc()) info.metric = metric;
    return info;
  }

  Value distribute(const CheckpointInfo& info, std::optional<Value> contents,
                   const LoadOptions& options) const {
    if (options_.reading == CheckpointReading::broadcast) {
      return checkpointing::share_value(group_, contents ? *contents : Value(), options.map_location);
    }
    checkpointing::on_every(group_, [&] {
      auto own = options;
      own.verify = true;
      contents = checkpointing::read_checkpoint(info.file, own);
    });
    return std::move(*contents);
  }

  CheckpointManagerOptions options_;
  CheckpointFolder folder_;
  Group group_;
  std::unique_ptr<checkpointing::CheckpointWriter> writer_;
};

CheckpointManager::CheckpointManager(std::filesystem::path folder, CheckpointManagerOptions options) {
  check(options);
  implementation_ = std::make_unique<Implementation>(std::move(folder), std::move(options));
}

CheckpointManager::~CheckpointManager() = default;

void CheckpointManager::save(std::int64_t step, const Value& contents, std::optional<double> metric) {
  implementation_->save(step, contents, metric);
}

void CheckpointManager::remove_after(std::int64_t step) { implementation_->remove_after(step); }

void CheckpointManager::wait() { implementation_->wait(); }

std::vector<CheckpointInfo> CheckpointManager::checkpoints() const { return implementation_->list(); }

std::optional<Checkpoint> CheckpointManager::load_latest(const LoadOptions& options) {
  return implementation_->load_first_whole(false, options);
}

std::optional<Checkpoint> CheckpointManager::load_best(const LoadOptions& options) {
  return implementation_->load_first_whole(true, options);
}

Checkpoint CheckpointManager::load(std::int64_t step, const LoadOptions& options) {
  return implementation_->load(step, options);
}

std::optional<CheckpointInfo> CheckpointManager::load_latest(Dict& contents) {
  return implementation_->load_first_whole(false, contents);
}

std::optional<CheckpointInfo> CheckpointManager::load_best(Dict& contents) {
  return implementation_->load_first_whole(true, contents);
}

CheckpointInfo CheckpointManager::load(std::int64_t step, Dict& contents) {
  return implementation_->load(step, contents);
}

const std::filesystem::path& CheckpointManager::folder() const { return implementation_->path(); }

Value load_on_all(const ProcessGroup& group, const std::filesystem::path& file, const LoadOptions& options,
                  CheckpointReading reading) {
  Value value;
  if (reading == CheckpointReading::every_rank) {
    checkpointing::on_every(group, [&] { value = load(file, options); });
    return value;
  }
  checkpointing::on_first(group, [&] { value = load(file, options); });
  return checkpointing::share_value(group, value, options.map_location);
}

}  // namespace lockstep
