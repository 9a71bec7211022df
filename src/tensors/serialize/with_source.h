// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"

namespace lockstep {

// Runs `action` and prefixes its CheckpointErrors with `source`, unless they begin with it.
template <typename Action>
auto with_source(const std::string& source, Action action) {
  try {
    return action();
  } catch (const CheckpointReadError&) {
    throw;
  } catch (const CheckpointError& error) {
    if (std::string_view(error.what()).starts_with(source)) throw;
    throw_error<CheckpointError>("{}: {}", source, error.what());
  }
}

}  // namespace lockstep
