// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep::ckpt {

/// While it lives, says on stderr how far some work is: in one changing line on a terminal, in a plain line
/// every few seconds elsewhere, not at all when the work is soon over.
class Progress {
 public:
  /// `done`, asked in a thread of its own, gives the bytes of `total` that are done; it must not throw.
  Progress(std::string what, std::uint64_t total, std::function<std::uint64_t()> done);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void show_until_over();
  void show();

  std::string what_;
  std::uint64_t total_;
  std::function<std::uint64_t()> done_;
  bool terminal_;
  bool shown_ = false;
  std::mutex mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;
  std::thread thread_;
};

/// "writing a.pt: 1.2 of 5.0 GB, 24%"; `done` may be more than `total`.
std::string progress_text(const std::string& what, std::uint64_t done, std::uint64_t total);

/// "1.2 GB"
std::string bytes_text(std::uint64_t bytes);

}  // namespace lockstep::ckpt
