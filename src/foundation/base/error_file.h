// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <utility>

namespace lockstep {

// While it exists, Errors that this thread makes are about this file or folder, unless they name another. The
// innermost one counts. Readers and writers keep one, so that what they call need not know the file.
class ErrorFile {
 public:
  explicit ErrorFile(std::filesystem::path file) : outer_(innermost_), file_(std::move(file)) {
    innermost_ = this;
  }
  ~ErrorFile() { innermost_ = outer_; }
  ErrorFile(const ErrorFile&) = delete;
  ErrorFile& operator=(const ErrorFile&) = delete;

  // The file of Errors of this thread now; empty without one.
  static std::filesystem::path current() {
    return innermost_ == nullptr ? std::filesystem::path() : innermost_->file_;
  }

 private:
  static inline thread_local const ErrorFile* innermost_ = nullptr;

  const ErrorFile* outer_;
  std::filesystem::path file_;
};

}  // namespace lockstep
