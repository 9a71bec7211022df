// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/device/module_ref.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep {

void refuse_null_module(std::source_location where) {
  const CallerPlace place(where);
  throw_error<ArgumentError>(
      "the module is an empty holder or a null pointer; construct it first, such as by Net net(options)");
}

}  // namespace lockstep
