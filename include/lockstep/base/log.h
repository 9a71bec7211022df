// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <sstream>
#include <string_view>
#include <type_traits>

namespace lockstep {

/// How much the log shows: messages of this level and of those above it. Environment: LOCKSTEP_LOG_LEVEL.
enum class LogLevel {
  debug,    ///< all messages
  info,     ///< what a run does
  warning,  ///< what a user should look at
  error,    ///< what went wrong
};

/// Writes one line to stderr: "[lockstep] message", with the rank after init(). Lines below the level in the
/// environment variable LOCKSTEP_LOG_LEVEL (debug, info, warning or error; default info) are dropped. Safe
/// from any thread.
void log(LogLevel level, std::string_view message);
/// The first part of a line of the log. A literal with the place of a number, "%d" or "{}", does not compile: the
/// parts are written one behind the other.
class LogText {
 public:
  template <std::size_t size>
  consteval LogText(const char (&text)[size]) : text_(text, size - 1) {  // NOLINT: implicit by design
    for (std::size_t i = 0; i + 1 < size; ++i)
      if (has_place(text_.substr(i))) write_the_parts_one_behind_the_other();
  }
  /// The text.
  std::string_view text() const { return text_; }

 private:
  static constexpr bool has_place(std::string_view text) {
    if (text.starts_with("{}") || text.starts_with("{:")) return true;
    if (!text.starts_with('%')) return false;
    const auto end = text.find_first_not_of("-+.0123456789", 1);
    return end != text.npos && std::string_view("defgilsux").find(text[end]) != text.npos;
  }
  static void write_the_parts_one_behind_the_other() {}

  std::string_view text_;
};

/// The type of an argument that is no literal, such as that of a number or of an array that is not const.
template <typename Part>
concept NoLiteral = !std::is_array_v<std::remove_reference_t<Part>> ||
                    !std::is_const_v<std::remove_extent_t<std::remove_reference_t<Part>>>;

/// Python's functions of the module `logging`, which write the parts of a line as log() does.
namespace logging {

/// log() of any parts.
template <typename... Parts>
void write_parts(LogLevel level, const Parts&... parts) {
  std::ostringstream line;
  (void)(line << ... << parts);
  log(level, std::string_view(line.view()));
}

/// log(LogLevel::debug, ...). Python: `logging.debug`.
template <typename... Others>
void debug(LogText first, const Others&... others) {
  write_parts(LogLevel::debug, first.text(), others...);
}
template <NoLiteral First, typename... Others>
void debug(First&& first, const Others&... others) {
  write_parts(LogLevel::debug, first, others...);
}
/// log(LogLevel::info, ...). Python: `logging.info`.
template <typename... Others>
void info(LogText first, const Others&... others) {
  write_parts(LogLevel::info, first.text(), others...);
}
template <NoLiteral First, typename... Others>
void info(First&& first, const Others&... others) {
  write_parts(LogLevel::info, first, others...);
}
/// log(LogLevel::warning, ...). Python: `logging.warning`.
template <typename... Others>
void warning(LogText first, const Others&... others) {
  write_parts(LogLevel::warning, first.text(), others...);
}
template <NoLiteral First, typename... Others>
void warning(First&& first, const Others&... others) {
  write_parts(LogLevel::warning, first, others...);
}
/// log(LogLevel::error, ...). Python: `logging.error`.
template <typename... Others>
void error(LogText first, const Others&... others) {
  write_parts(LogLevel::error, first.text(), others...);
}
template <NoLiteral First, typename... Others>
void error(First&& first, const Others&... others) {
  write_parts(LogLevel::error, first, others...);
}

}  // namespace logging

/// One line of several parts, which are written one behind the other as by TORCH_WARN:
/// `log(LogLevel::info, "epoch ", epoch, ": loss ", loss);`
template <typename Second, typename... Others>
void log(LogLevel level, LogText first, const Second& second, const Others&... others) {
  logging::write_parts(level, first.text(), second, others...);
}
template <NoLiteral First, typename Second, typename... Others>
void log(LogLevel level, First&& first, const Second& second, const Others&... others) {
  logging::write_parts(level, first, second, others...);
}

}  // namespace lockstep
