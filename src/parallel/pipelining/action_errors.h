// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>

#include <lockstep/pipelining/schedule.h>

#include "base/throw_error.h"

namespace lockstep::pipelining {

inline std::string action_text(int rank, const Action& action) {
  return action.microbatch_index
             ? fmt::format("pipeline rank {}, stage {}, micro-batch {}, action {}", rank, action.stage_index,
                           *action.microbatch_index, action.str())
             : fmt::format("pipeline rank {}, stage {}, action {}", rank, action.stage_index, action.str());
}

// Runs `body`. What it throws names the action then, with the same type.
void at_action(int rank, const Action& action, const auto& body) {
  const auto named = [&](const std::exception& error) {
    return fmt::format("{}: {}", action_text(rank, action), error.what());
  };
  try {
    body();
  } catch (const ArgumentError& error) {
    throw ArgumentError(named(error), error.details());
  } catch (const TimeoutError& error) {
    throw TimeoutError(named(error), error.details());
  } catch (const PeerLost& error) {
    throw PeerLost(named(error), error.details());
  } catch (const DesyncError& error) {
    throw DesyncError(named(error), error.details());
  } catch (const Error& error) {
    throw Error(named(error), error.details());
  } catch (const std::exception& error) {
    throw Error(named(error));
  }
}

}  // namespace lockstep::pipelining
