// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

// The rank that throws.
struct Reporter {
  int rank;
  int size;
};

// "rank 1 of 2".
std::string numbered_rank(int rank, int size);

// `text` with "rank 1 of 2: " before it, unless it names the reporter somewhere.
std::string with_reporter(const Reporter& by, const std::string& text);

// Throws ErrorType with a formatted message.
template <typename ErrorType, typename... Args>
[[noreturn]] void throw_error(fmt::format_string<Args...> format, Args&&... args) {
  throw ErrorType(fmt::format(format, std::forward<Args>(args)...));
}

template <typename ErrorType, typename... Args>
[[noreturn]] void throw_error(ErrorDetails about, fmt::format_string<Args...> format, Args&&... args) {
  throw ErrorType(fmt::format(format, std::forward<Args>(args)...), std::move(about));
}

// These name the reporter.
template <typename ErrorType, typename... Args>
[[noreturn]] void throw_error(const Reporter& by, fmt::format_string<Args...> format, Args&&... args) {
  throw ErrorType(with_reporter(by, fmt::format(format, std::forward<Args>(args)...)));
}

template <typename ErrorType, typename... Args>
[[noreturn]] void throw_error(const Reporter& by, ErrorDetails about, fmt::format_string<Args...> format,
                              Args&&... args) {
  throw ErrorType(with_reporter(by, fmt::format(format, std::forward<Args>(args)...)), std::move(about));
}

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
