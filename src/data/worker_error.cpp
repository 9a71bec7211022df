// SPDX-License-Identifier: BSD-3-Clause
#include "data/worker_error.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <lockstep/base/log.h>

namespace lockstep::data {
namespace {

// Assigns the message alone: what is derived from the standard's class keeps its type and its own members.
template <typename Standard>
bool replace_message(Standard& error, const std::string& text) {
  error = Standard(text);
  return std::string_view(error.what()) == text;
}

void describe(const std::exception_ptr& thrown, const std::string& where) {
  const auto text = [&](const std::exception& error) {
    return fmt::format("Caught {} in {}: {}", type_text(typeid(error)), where, error.what());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (c10::Error& error) {
    error.add_context(fmt::format("Caught {} in {}", type_text(typeid(error)), where));
  } catch (std::runtime_error& error) {
    const auto message = text(error);
    if (!replace_message(error, message)) log(LogLevel::error, message);
  } catch (std::logic_error& error) {
    const auto message = text(error);
    if (!replace_message(error, message)) log(LogLevel::error, message);
  } catch (const std::exception& error) {
    log(LogLevel::error, text(error));
  } catch (...) {
    log(LogLevel::error, fmt::format("Caught what is no std::exception in {}", where));
  }
}

}  // namespace

std::exception_ptr described_error(std::exception_ptr error, const std::string& where) {
  describe(error, where);
  return error;
}

std::string type_text(const std::type_info& type) { return c10::demangle(type.name()); }

}  // namespace lockstep::data
