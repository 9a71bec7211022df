// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <string_view>

namespace lockstep::comm {

// Note [Places of calls]
//
// A call's record names the line of the program that made it. A function of ours that makes calls deep inside
// takes the line of its caller and keeps a CallSite: the calls of this thread that begin meanwhile have that
// line, and what they carry. Of several CallSites the outermost one gives the line, because inner functions may
// have been called from a file of ours, and the innermost one the contents. Code of the program, such as a
// communication hook, runs outside of CallSites where possible: its calls have lines of their own.

class CallSite {
 public:
  // `contents`: what the tensors are, "gradients of bucket", with `index` behind it unless it is -1; a text
  // that lives as long as the process. Without a line, messages name no place.
  explicit CallSite(std::source_location where, std::string_view contents = {}, int index = -1)
      : outer_(innermost_),
        where_(outer_ != nullptr ? outer_->where_ : where),
        contents_(contents),
        index_(index) {
    innermost_ = this;
  }
  explicit CallSite(std::string_view contents, int index = -1)
      : CallSite(std::source_location(), contents, index) {}
  ~CallSite() { innermost_ = outer_; }
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  // The innermost one of the calling thread; nullptr: its calls are those of the program.
  static const CallSite* current() { return innermost_; }

  std::source_location where() const { return where_; }
  std::string_view contents() const { return contents_; }
  int index() const { return index_; }

 private:
  static inline thread_local const CallSite* innermost_ = nullptr;

  const CallSite* outer_;
  std::source_location where_;
  std::string_view contents_;
  int index_;
};

}  // namespace lockstep::comm
