// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <lockstep/base/error.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

std::shared_ptr<const ErrorDetails> completed(ErrorDetails details) {
  if (details.file.empty()) details.file = ErrorFile::current();
  return std::make_shared<const ErrorDetails>(std::move(details));
}

}  // namespace

Error::Error(const std::string& message, ErrorDetails details)
    : std::runtime_error(with_line(message, CallerPlace::current())),
      details_(completed(std::move(details))) {}

std::optional<int> Error::rank() const {
  return ranks().empty() ? std::nullopt : std::optional(ranks().front());
}

std::string numbered_rank(int rank, int size) { return fmt::format("rank {} of {}", rank, size); }

std::string with_reporter(const Reporter& by, const std::string& text) {
  const auto who = numbered_rank(by.rank, by.size);
  return text.find(who) == std::string::npos ? fmt::format("{}: {}", who, text) : text;
}

}  // namespace lockstep
