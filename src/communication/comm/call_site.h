// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <string_view>
#include <utility>

#include <lockstep/base/error.h>

#include "base/caller_place.h"

namespace lockstep::comm {

// Note [Places of calls]
//
// A call's record names the line of the program that made it. A function of ours that makes calls deep inside
// takes the line of its caller and keeps a CallSite: the calls of this thread that begin meanwhile have that
// line, and what they carry. Of several CallSites the outermost one gives the line, because inner functions may
// have been called from a file of ours, and the innermost one the contents. Code of the program, such as a
// communication hook, runs outside of CallSites where possible: its calls have lines of their own. Around it
// there is a CallerPlace, whose line the CallSites of our own hooks have, which are given none. An error meanwhile
// names the line, too: a CallSite is one.

class CallSite {
 public:
  // `contents`: what the tensors are, "gradients of bucket", with `index` behind it unless it is -1; a text
  // that lives as long as the process.
  explicit CallSite(std::source_location where, std::string_view contents = {}, int index = -1)
      : place_(where),
        outer_(innermost_),
        where_(outer_ != nullptr ? outer_->where_ : where),
        contents_(contents),
        index_(index) {
    innermost_ = this;
  }
  // With the line of the CallerPlace or CallSite around it; without one, messages name none.
  explicit CallSite(std::string_view contents, int index = -1)
      : CallSite(innermost_ != nullptr ? innermost_->where_ : CallerPlace::current(), contents, index) {}
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

  CallerPlace place_;
  const CallSite* outer_;
  std::source_location where_;
  std::string_view contents_;
  int index_;
};

// While it lives, calls of this thread on any group throw ArgumentError with this text: the other ranks do not make
// them.
class WithoutCalls {
 public:
  // `reason`: a text that lives as long as this object.
  explicit WithoutCalls(const char* reason) : outer_(std::exchange(reason_, reason)) {}
  ~WithoutCalls() { reason_ = outer_; }
  WithoutCalls(const WithoutCalls&) = delete;
  WithoutCalls& operator=(const WithoutCalls&) = delete;

  static void check_call() {
    if (reason_ != nullptr) throw ArgumentError(reason_);
  }

 private:
  static inline thread_local const char* reason_ = nullptr;

  const char* outer_;
};

}  // namespace lockstep::comm
