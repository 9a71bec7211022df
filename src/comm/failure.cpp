// SPDX-License-Identifier: BSD-3-Clause
#include "comm/failure.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::comm {
namespace {

// Backends throw plain runtime errors; only their text tells what happened.
constexpr std::array kTimeoutSigns = {"Timed out", "timed out", "Timeout", "timeout"};
constexpr std::array kPeerSigns = {"Connection closed by peer",
                                   "Connection reset by peer",
                                   "Connection refused",
                                   "Broken pipe",
                                   "Socket closed",
                                   "connection closed"};

bool mentions(std::string_view text, const auto& signs) {
  return std::ranges::any_of(signs,
                             [&](const char* sign) { return text.find(sign) != std::string_view::npos; });
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

[[noreturn]] void throw_by_text(const std::string& what, const std::string& reason) {
  // Peer signs first: Gloo's text for a closed connection may also mention the timeout that was set.
  if (mentions(reason, kPeerSigns)) {
    throw PeerLost(
        fmt::format("{} failed because another rank is gone: {}. Look for the first error among "
                    "the other ranks; this one is its consequence",
                    what, reason));
  }
  if (mentions(reason, kTimeoutSigns)) {
    throw TimeoutError(
        fmt::format("{} did not finish in time: {}. Some rank did not make the matching call; "
                    "compare what each rank was doing, or raise InitOptions::timeout",
                    what, reason));
  }
  throw Error(fmt::format("{} failed: {}", what, reason));
}

}  // namespace

void rethrow_as_ours(const std::exception_ptr& cause, const std::string& what) {
  try {
    std::rethrow_exception(cause);
  } catch (const Error&) {
    throw;
  } catch (const c10::NotImplementedError& error) {
    throw ArgumentError(fmt::format("{}: {}", what, first_line(error.what_without_backtrace())));
  } catch (const c10::ValueError& error) {
    throw ArgumentError(fmt::format("{}: {}", what, first_line(error.what_without_backtrace())));
  } catch (const std::invalid_argument& error) {
    throw ArgumentError(fmt::format("{}: {}", what, first_line(error.what())));
  } catch (const c10::Error& error) {
    throw_by_text(what, first_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw_by_text(what, first_line(error.what()));
  }
}

}  // namespace lockstep::comm
