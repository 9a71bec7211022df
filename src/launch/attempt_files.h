// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/options.h>

namespace lockstep::launch {

/// The folder for the log files of one run, made when the first attempt begins.
class LogFolder {
 public:
  LogFolder(const OutputOptions& options, std::string run_id);

  /// Whether this run has files at all.
  bool wanted() const { return wanted_; }
  /// The empty folder for an attempt. Throws LaunchError when it cannot be made.
  std::filesystem::path begin_attempt(int restarts);
  /// Where the run's files are, once there are any.
  const std::filesystem::path& path() const { return run_; }

 private:
  void make_run_folder();

  std::string base_;
  std::string run_id_;
  bool wanted_;
  std::filesystem::path run_;
};

/// Where one rank may record the exception that ended it: the file that TORCHELASTIC_ERROR_FILE names.
/// PyTorch: torch.distributed.elastic.multiprocessing.errors.
class ErrorRecord {
 public:
  /// In memory, so that nothing is left behind whatever dies.
  ErrorRecord();
  /// In a file that stays.
  explicit ErrorRecord(std::filesystem::path file) : path_(std::move(file)) {}

  /// For the rank's environment; lives as long as this object.
  std::string path() const { return path_.string(); }
  /// The text of the exception, or empty where none was recorded or what is there is not understood.
  std::string message() const;

 private:
  UniqueFd memory_;
  std::filesystem::path path_;
};

/// Creates or empties `path` for writing. Throws LaunchError naming it.
UniqueFd open_log(const std::filesystem::path& path);

/// What an earlier run left there.
void remove_error_file(const std::filesystem::path& path);

/// Writes `text` whole or not at all. `path` may also be what another launcher's ErrorRecord gave this one.
void write_error_file(const std::filesystem::path& path, const std::string& text);

}  // namespace lockstep::launch
