// SPDX-License-Identifier: BSD-3-Clause
// What launchers receive. Each line of the input is an event: a letter, the number of a node, and a rest.
// Lines of messages give a message or a LaunchError. The coordinator of the nodes never starts ranks while a
// node still has ranks of the attempt before, whatever it receives.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <variant>

#include <lockstep/base/error.h>

#include "launch/coordinator.h"
#include "launch/messages.h"

namespace {

using namespace lockstep::launch;

constexpr int kNodes = 8;

int number_of(char byte) { return static_cast<unsigned char>(byte); }

[[noreturn]] void fail(const char* complaint) {
  std::cerr << complaint << std::endl;
  std::abort();
}

// A run whose nodes do what the events say.
class Run {
 public:
  explicit Run(const CoordinatorOptions& options) : shared_(options.shared), coordinator_(options, now_) {}

  void apply(const std::string& line) {
    const int number = number_of(line[1]) % kNodes;
    const auto rest = line.substr(2);
    if (line[0] == 'j') join(number, rest);
    if (line[0] == '+') advance_clock(rest);
    if (line[0] == 'd') decode(rest);
    if (const auto node = nodes_.find(number); node != nodes_.end()) act(line[0], number, node->second, rest);
    for (const auto& message : coordinator_.take_messages()) receive(message.to, message.what);
  }

 private:
  struct Node {
    int attempt = 0;
    bool has_ranks = false;
  };

  void join(int number, const std::string& rest) {
    if (!nodes_.emplace(number, Node{}).second) return;
    NodeInfo info{
        .shared = shared_, .ranks = 1 + number, .host = std::to_string(number), .is_host = number == 0};
    if (!rest.empty()) info.node_rank = number_of(rest[0]) % kNodes;
    coordinator_.join(number, info, now_);
  }

  void advance_clock(const std::string& rest) {
    now_ += std::chrono::milliseconds(rest.empty() ? 100 : number_of(rest[0]) * 1000);
    coordinator_.tick(now_);
  }

  static void decode(const std::string& line) {
    try {
      (void)decode_hello(line);
    } catch (const lockstep::LaunchError&) {
    }
    try {
      (void)decode_to_node(line);
    } catch (const lockstep::LaunchError&) {
    }
  }

  void act(char what, int number, Node& node, const std::string& rest) {
    const auto attempt = node.attempt;
    if (what == 'r') send(number, Reserved{.address = "a", .port = 1});
    if (what == 'f' || what == 'c') send(number, Failed{.attempt = attempt, .consequence = what == 'c'});
    if (what == 's' || what == 'e' || what == 'l' || what == 'x') node.has_ranks = false;
    if (what == 's') send(number, Stopped{attempt});
    if (what == 'e') send(number, Finished{attempt});
    if (what == 'l') send(number, Leaving{.reason = rest, .signal = 15});
    if (what == 'x') coordinator_.lose(number, rest, now_);
    if (what == 'l' || what == 'x') nodes_.erase(number);
    if (what == 'm') send_line(number, node, rest);
  }

  // Its sender may lie about its ranks.
  void send_line(int number, Node& node, const std::string& line) {
    std::optional<FromNode> message;
    try {
      message = decode_from_node(line);
    } catch (const lockstep::LaunchError&) {
      return;
    }
    (void)decode_from_node(encode(*message));
    node.has_ranks = false;
    send(number, *message);
    if (std::holds_alternative<Leaving>(*message)) nodes_.erase(number);
  }

  void send(int number, const FromNode& message) { coordinator_.handle(number, message, now_); }

  void receive(int number, const ToNode& message) {
    (void)decode_to_node(encode(message));
    const auto node = nodes_.find(number);
    if (node == nodes_.end()) return;
    if (std::holds_alternative<Refused>(message)) {
      nodes_.erase(node);
      return;
    }
    const auto* const start = std::get_if<Start>(&message);
    if (start == nullptr) return;
    for (const auto& [other, state] : nodes_)
      if (state.has_ranks && state.attempt < start->assignment.attempt) fail("ranks of two attempts run");
    node->second = {.attempt = start->assignment.attempt, .has_ranks = true};
  }

  Coordinator::Clock::time_point now_{};
  SharedOptions shared_;
  Coordinator coordinator_;
  std::map<int, Node> nodes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  std::istringstream lines(std::string(reinterpret_cast<const char*>(bytes), size));
  std::string line;
  if (!std::getline(lines, line) || line.size() < 3) return 0;
  const int most = 1 + number_of(line[0]) % kNodes;
  const SharedOptions shared{
      .min_nodes = 1 + number_of(line[1]) % most, .max_nodes = most, .max_restarts = 2};
  Run run({.shared = shared, .numbered = number_of(line[2]) % 2 == 1});
  while (std::getline(lines, line))
    if (line.size() >= 2) run.apply(line);
  return 0;
}
