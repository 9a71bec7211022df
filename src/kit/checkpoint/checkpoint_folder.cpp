// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <map>
#include <ranges>
#include <span>
#include <system_error>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/log.h>

#include "base/atomic_file.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "serialize/byte_source.h"

namespace lockstep::checkpointing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".pt";
constexpr const char* kMetrics = "metrics.json";
constexpr std::string_view kUnfinished = ".part";

std::string name_of(std::int64_t step, bool in_parts) {
  return fmt::format("{}{:08d}{}", kPrefix, step, in_parts ? "" : kSuffix);
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const bool in_parts = !name.ends_with(kSuffix);
  auto digits = std::string_view(name).substr(kPrefix.size());
  if (!in_parts) digits.remove_suffix(kSuffix.size());
  const auto step = parse_number<std::int64_t>(digits);
  // One name a step.
  return step && *step >= 0 && name == name_of(*step, in_parts) ? step : std::nullopt;
}

std::optional<std::string> whole_text(const fs::path& file) {
  std::error_code code;
  if (fs::status(file, code).type() == fs::file_type::not_found) return std::nullopt;
  const auto source = serialize::open_file(file, false);
  return source->read_text(0, source->size());
}

// A missing or damaged file is no error, because checkpoints load without it. One that cannot be read is,
// because the next save would overwrite it.
std::map<std::int64_t, double> read_metrics(const fs::path& file) {
  std::map<std::int64_t, double> metrics;
  const auto text = whole_text(file);
  if (!text) return metrics;
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) {
    log(LogLevel::warning, fmt::format("{} is damaged; the best checkpoint is unknown", file.string()));
    return metrics;
  }
  for (const auto& [key, value] : json.items()) {
    std::int64_t step = 0;
    const auto [stop, code] = std::from_chars(key.data(), key.data() + key.size(), step);
    if (code == std::errc() && value.is_number()) metrics[step] = value.get<double>();
  }
  return metrics;
}

// Training that diverged has no usable metric.
bool has_metric(const CheckpointInfo& info) { return info.metric && std::isfinite(*info.metric); }

fs::path with_ending(fs::path path, std::string_view ending) {
  path += ending;
  return path;
}

// Unique, because other managers may write to the folder at the same time.
fs::path unfinished_name(const fs::path& name) {
  return with_ending(name, fmt::format(".{}{}", random_hex(2), kUnfinished));
}

// Another process finished a checkpoint of the name meanwhile. If it now replaces it in place, it would write
// to a removed folder.
std::error_code replace_folder(const fs::path& new_folder, const fs::path& name) {
  constexpr std::chrono::milliseconds longest_wait{10'000};
  FolderUse old(name);
  if (old.be_the_last(longest_wait) == Others::some) {
    throw_error<CheckpointError>(
        "{}: not saved, because another process is saving the checkpoint; give each process that saves alone "
        "a folder of its own",
        name.string());
  }
  if (::renameat2(AT_FDCWD, new_folder.c_str(), AT_FDCWD, name.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;
    fs::remove_all(new_folder, ignored);
    return {};
  }
  // The file system cannot exchange names.
  std::error_code code;
  const auto gone = unfinished_name(name);
  fs::rename(name, gone, code);
  fs::rename(new_folder, name, code);
  std::error_code ignored;
  fs::remove_all(gone, ignored);
  return code;
}

[[noreturn]] void fail(const fs::path& file, const std::string& what, const std::error_code& code) {
  throw_error<CheckpointError>(ErrorDetails{.file = file}, "{}: {}: {}", file.string(), what, code.message());
}

}  // namespace

fs::path CheckpointFolder::file_of(std::int64_t step, bool in_parts) const {
  return path_ / name_of(step, in_parts);
}

fs::path CheckpointFolder::new_folder_for(std::int64_t step) {
  while (true) {
    const auto folder = unfinished_name(file_of(step, true));
    std::error_code code;
    fs::create_directory(folder, code);
    if (code) fail(folder, "the folder cannot be made", code);
    unfinished_.emplace(folder);
    // Otherwise another process removed it before it was locked.
    if (unfinished_->is_at(folder)) return folder;
  }
}

void CheckpointFolder::remove_unfinished(const fs::path& new_folder) {
  std::error_code code;
  if (new_folder.parent_path() != path_ || new_folder.extension() != kUnfinished) return;
  fs::remove_all(new_folder, code);
  // Another rank may have removed its mark from the folder at the same time.
  if (code) fs::remove_all(new_folder, code);
  unfinished_.reset();
}

void CheckpointFolder::finish(const fs::path& new_folder, const fs::path& name, bool sync) {
  std::error_code code;
  fs::rename(new_folder, name, code);
  if (code == std::errc::directory_not_empty || code == std::errc::file_exists)
    code = replace_folder(new_folder, name);
  if (code) fail(name, "the checkpoint cannot be renamed", code);
  unfinished_.reset();
  try {
    if (sync) sync_folder(path_);
  } catch (const std::system_error& error) {
    fail(path_, "cannot be flushed to disk", error.code());
  }
}

std::vector<CheckpointInfo> CheckpointFolder::list() const {
  std::vector<CheckpointInfo> infos;
  std::error_code code;
  const auto metrics = read_metrics(path_ / kMetrics);
  for (auto entry = fs::directory_iterator(path_, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    const auto step = step_of(entry->path().filename().string());
    if (!step) continue;
    CheckpointInfo info{.step = *step, .file = entry->path(), .metric = {}};
    if (const auto metric = metrics.find(*step); metric != metrics.end()) info.metric = metric->second;
    infos.push_back(std::move(info));
  }
  if (code) fail(path_, "the checkpoint folder cannot be read", code);
  std::ranges::sort(infos, {}, &CheckpointInfo::step);
  return infos;
}

void CheckpointFolder::check_is_latest(std::int64_t step) const {
  std::error_code code;
  if (!fs::is_directory(path_, code)) return;  // the writer creates it or reports the error
  for (const auto& info : std::views::reverse(list())) {
    if (info.step <= step) return;
    if (damaged_.contains(info.step)) continue;
    throw_error<CheckpointError>(
        "{}: step {} is not saved, because load_latest() would return the existing checkpoint of step {}: "
        "start with load_latest(), keep the step count in the checkpoint (TrainingState::add), or use a new "
        "folder; to continue from an older checkpoint, remove the newer ones with remove_after()",
        path_.string(), step, info.step);
  }
}

// A new folder would hide that the saved checkpoints are missing.
void CheckpointFolder::check_has_not_vanished() const {
  std::error_code code;
  if (!was_there_ || fs::status(path_, code).type() != fs::file_type::not_found) return;
  throw_error<CheckpointError>(
      "{}: the checkpoint folder and its checkpoints have disappeared, so nothing is saved: restore the "
      "folder (is its disk still mounted?), or create it again, by hand or with a new CheckpointManager, to "
      "continue without them",
      path_.string());
}

void CheckpointFolder::make(bool sync) {
  check_has_not_vanished();
  std::error_code code;
  if (fs::is_directory(path_, code)) {
    was_there_ = true;
    return;
  }
  try {
    make_folders(path_, sync);
  } catch (const std::system_error& error) {
    fail(path_, "the checkpoint folder cannot be created", error.code());
  }
  if (!fs::is_directory(path_, code)) throw_error<CheckpointError>("{}: it is not a folder", path_.string());
}

void CheckpointFolder::remove_leftovers() const {
  std::error_code code;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(path_, code)) {
    const auto name = entry.path().filename().string();
    const bool own = name.starts_with(kPrefix) || name.starts_with(kMetrics) || name.starts_with("last.") ||
                     name.starts_with("best.");
    if (own && name.ends_with(kUnfinished)) found.push_back(entry.path());
  }
  for (const auto& file : found) remove_if_unused(file);
}

void CheckpointFolder::write_metrics(const std::vector<CheckpointInfo>& infos, bool sync) const {
  auto json = nlohmann::json::object();
  for (const auto& info : infos) {
    if (has_metric(info)) json[fmt::format("{}", info.step)] = *info.metric;
  }
  const auto text = json.dump(1) + "\n";
  const auto file = path_ / kMetrics;
  try {
    AtomicFile target(file, {.sync = sync});
    target.write(std::as_bytes(std::span(text)));
    target.commit();
  } catch (const std::system_error& error) {
    fail(file, "cannot be written", error.code());
  }
}

void CheckpointFolder::link(const std::string& name, const std::optional<fs::path>& file) const {
  const auto ending = file ? file->extension() : fs::path();
  std::error_code code;
  for (const auto& other : {fs::path(), fs::path(kSuffix)}) {
    if (!file || other != ending) fs::remove(with_ending(path_ / name, other.string()), code);
  }
  if (!file) return;
  const auto link = with_ending(path_ / name, ending.string());
  const auto unfinished = unfinished_name(link);
  fs::create_symlink(file->filename(), unfinished, code);
  if (!code) fs::rename(unfinished, link, code);
  if (code)
    log(LogLevel::warning, fmt::format("{}: the link cannot be made: {}", link.string(), code.message()));
  if (code) fs::remove(unfinished, code);
}

void CheckpointFolder::remove(const CheckpointInfo& info) const {
  std::error_code code;
  if (fs::is_directory(info.file, code)) {
    // Renamed first, because a partly removed folder could be taken for a checkpoint.
    const auto gone = unfinished_name(info.file);
    fs::rename(info.file, gone, code);
    if (!code) fs::remove_all(gone, code);
  } else {
    fs::remove(info.file, code);
  }
  if (code)
    log(LogLevel::warning, fmt::format("{}: cannot be removed: {}", info.file.string(), code.message()));
}

std::vector<CheckpointInfo> by_metric(std::vector<CheckpointInfo> infos, bool higher_is_better) {
  std::erase_if(infos, [](const CheckpointInfo& info) { return !has_metric(info); });
  std::ranges::sort(infos, [&](const CheckpointInfo& left, const CheckpointInfo& right) {
    if (*left.metric == *right.metric) return left.step > right.step;
    return (*left.metric > *right.metric) == higher_is_better;
  });
  return infos;
}

std::vector<CheckpointInfo> without(std::vector<CheckpointInfo> infos,
                                    const std::set<std::int64_t>& damaged) {
  std::erase_if(infos, [&](const CheckpointInfo& info) { return damaged.contains(info.step); });
  return infos;
}

std::vector<CheckpointInfo> to_remove(const std::vector<CheckpointInfo>& oldest_first,
                                      const std::set<std::int64_t>& damaged, std::int64_t just_saved,
                                      const CheckpointManagerOptions& options) {
  if (options.keep_last == 0) return {};
  const auto whole = without(oldest_first, damaged);
  std::set<std::int64_t> kept{just_saved};
  const auto count = std::ssize(whole);
  for (auto i = std::max<std::int64_t>(0, count - options.keep_last); i < count; ++i) {
    kept.insert(whole[static_cast<std::size_t>(i)].step);
  }
  const auto oldest_of_last = *kept.begin();
  const auto best = by_metric(whole, options.higher_is_better);
  for (std::size_t i = 0; i < best.size() && std::cmp_less(i, options.keep_best); ++i)
    kept.insert(best[i].step);
  std::vector<CheckpointInfo> removed;
  for (const auto& info : oldest_first) {
    const bool milestone = options.keep_every > 0 && info.step % options.keep_every == 0;
    // Kept as long as an intact one, for inspection and repair.
    const bool damaged_lately = damaged.contains(info.step) && info.step > oldest_of_last;
    if (!milestone && !damaged_lately && !kept.contains(info.step)) removed.push_back(info);
  }
  return removed;
}

}  // namespace lockstep::checkpointing
