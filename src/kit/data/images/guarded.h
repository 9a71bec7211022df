// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <csetjmp>

#include "base/throw_error.h"

namespace lockstep::data {

// Runs `calls`, which call a C library and own nothing: an error of the library jumps over them to
// `state.jump`, with its message in `state.text`. Throws it as DataError.
template <typename State, typename Calls>
void guarded(State& state, const char* library, Calls&& calls) {
  if (setjmp(state.jump) != 0) throw_error<DataError>("{}: {}", library, state.text.data());
  calls();
}

}  // namespace lockstep::data
