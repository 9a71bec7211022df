// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

// Note [Places of errors]
//
// A public function takes the line of its caller as a std::source_location and keeps a CallerPlace while it
// runs. An Error that this thread makes meanwhile names that line, unless its text names one already. Of several
// CallerPlaces the innermost one that is a line of the program counts: functions of ours call each other, and
// they call functions of the program, which call ours.

class CallerPlace {
 public:
  explicit CallerPlace(std::source_location where) : outer_(innermost_), where_(where) { innermost_ = this; }
  ~CallerPlace() { innermost_ = outer_; }
  CallerPlace(const CallerPlace&) = delete;
  CallerPlace& operator=(const CallerPlace&) = delete;

  // The line that an Error of this thread names now; line 0 without one.
  static std::source_location current();

 private:
  friend class WithoutPlace;
  static inline thread_local const CallerPlace* innermost_ = nullptr;

  const CallerPlace* outer_;
  std::source_location where_;
};

// Errors that this thread makes meanwhile name no line: whoever rethrows them names the call.
class WithoutPlace {
 public:
  WithoutPlace() : outer_(std::exchange(CallerPlace::innermost_, nullptr)) {}
  ~WithoutPlace() { CallerPlace::innermost_ = outer_; }
  WithoutPlace(const WithoutPlace&) = delete;
  WithoutPlace& operator=(const WithoutPlace&) = delete;

 private:
  const CallerPlace* outer_;
};

// Whether a file is one of the program: no header of the C++ library, of LibTorch or of ours, and no source of
// ours. An object that std::make_shared() makes has a place in such a header.
bool is_file_of_program(std::string_view file);

// "train.cpp:42"; empty unless it is a line of the program.
std::string line_text(const std::source_location& where);

// ", made at train.cpp:42", of an object; empty unless it is a line of the program.
std::string made_at(const std::source_location& where);

// "train.cpp:42: ", with which a message begins; empty unless it is a line of the program.
std::string line_prefix(const std::source_location& where);

// `text` with " (at train.cpp:42)" behind its first line, unless it names a line.
std::string with_line(const std::string& text, const std::source_location& where);

}  // namespace lockstep
