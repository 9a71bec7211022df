// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <lockstep/base/mutex.h>

namespace lockstep::ckpt {

// Shows progress on stderr during its lifetime: one updated line on a terminal, otherwise a line every few
// seconds. Short work shows nothing.
class Progress {
 public:
  // `done` returns how many bytes of `total` are done. A thread calls it; it must not throw.
  Progress(std::string what, std::uint64_t total, std::function<std::uint64_t()> done);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void show_until_over();
  void show() LOCKSTEP_REQUIRES(mutex_);

  std::string what_;
  std::uint64_t total_;
  std::function<std::uint64_t()> done_;
  bool terminal_;
  Mutex mutex_;
  Condition over_changed_;
  bool over_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool shown_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// "writing a.pt: 1.2 of 5.0 GB, 24%"; `done` may be more than `total`.
std::string progress_text(const std::string& what, std::uint64_t done, std::uint64_t total);

// "1.2 GB"
std::string bytes_text(std::uint64_t bytes);

// The progress of reading a checkpoint, a file or a folder.
std::unique_ptr<Progress> reading_progress(const std::filesystem::path& path);

// The progress of writing `total` bytes of a checkpoint. Everything that this process writes counts.
std::unique_ptr<Progress> writing_progress(const std::filesystem::path& path, std::uint64_t total);

}  // namespace lockstep::ckpt
