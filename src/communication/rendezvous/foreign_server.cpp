// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/foreign_server.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <sys/socket.h>

#include "base/sockets.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::chrono::milliseconds kAnswerLimit{500};
// Most servers answer to it or have sent a greeting before.
constexpr std::string_view kRequest = "GET / HTTP/1.0\r\n\r\n";

std::string first_line_of(std::string_view bytes) {
  std::string line(bytes.substr(0, bytes.find_first_of("\r\n")));
  std::ranges::replace_if(
      line, [](unsigned char letter) { return std::isprint(letter) == 0; }, '?');
  return line;
}

std::string answer_of(int socket, const Deadline& deadline) {
  if (::send(socket, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) return "";
  std::array<char, 80> bytes{};
  if (!wait_for(socket, POLLIN, deadline)) return "";
  const auto count = ::recv(socket, bytes.data(), bytes.size(), 0);
  return count > 0 ? first_line_of({bytes.data(), static_cast<std::size_t>(count)}) : "";
}

}  // namespace

std::string answer_of_foreign_server(const Endpoint& server) {
  const Deadline deadline(kAnswerLimit);
  for (const auto& address : resolve_now(server.host, server.port).addresses) {
    const auto socket = connect_to(address, deadline);
    if (!socket) continue;
    if (auto answer = answer_of(socket.get(), deadline); !answer.empty()) return answer;
  }
  return "";
}

}  // namespace lockstep::rendezvous
