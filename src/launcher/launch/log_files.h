// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "launch/options.h"

namespace lockstep::launch {

// The folder for the log files of one run, created when the first attempt begins.
class LogFolder {
 public:
  LogFolder(const OutputOptions& options, std::string run_id);

  // Whether this run has log files.
  bool wanted() const { return wanted_; }
  // Creates the folder for an attempt. Throws LaunchError if it cannot.
  std::filesystem::path begin_attempt(int restarts);
  // The folder of the run; empty before the first attempt.
  const std::filesystem::path& path() const { return run_; }

 private:
  void make_run_folder();

  std::string base_;
  std::string run_id_;
  bool wanted_;
  std::filesystem::path run_;
};

// The file in which a rank may record the exception that ended it: TORCHELASTIC_ERROR_FILE.
// PyTorch: torch.distributed.elastic.multiprocessing.errors.
class ErrorRecord {
 public:
  // In memory, so that no file can stay behind.
  ErrorRecord();
  // In a file.
  explicit ErrorRecord(std::filesystem::path file) : path_(std::move(file)) {}

  // For the rank's environment; valid while this object exists.
  std::string path() const { return path_.string(); }
  // The text of the exception, or empty if none was recorded or the record is malformed.
  std::string message() const;

 private:
  UniqueFd memory_;
  std::filesystem::path path_;
};

// Creates a folder for logs and its parents. Throws LaunchError naming it.
void make_log_folder(const std::filesystem::path& path);

// Creates or truncates `path` for writing. Throws LaunchError naming it.
UniqueFd open_log(const std::filesystem::path& path);

// Removes the file of an earlier run.
void remove_error_file(const std::filesystem::path& path);

// Writes `text` atomically. `path` may also be that of another launcher's ErrorRecord.
void write_error_file(const std::filesystem::path& path, const std::string& text);

}  // namespace lockstep::launch
