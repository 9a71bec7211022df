// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --metrics-port` with real ranks, which know nothing of it.
#include <array>
#include <csignal>
#include <fstream>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/sockets.h"
#include "base/text.h"
#include "support/ranks.h"
#include "tool_program.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const testing::Scenario makes_steps("metrics: makes steps until it is stopped", [] {
  const auto context = init({.backend = "shm"});
  auto x = torch::ones({256});
  for (std::uint64_t step = 1;; ++step) {
    context.group().all_reduce(x);
    count_step(*current_progress(), step);
    report_number("loss", 1.0 / static_cast<double>(step));
    std::this_thread::sleep_for(1ms);
  }
});

constexpr const char* kToken = "0123456789abcdef";

class Metrics : public testing::ToolProgram {
 protected:
  Metrics() : ToolProgram("run") { std::ofstream(file("token")) << kToken << "\n"; }

  std::string refused(const std::vector<std::string>& options, int code) const {
    auto words = options;
    words.insert(words.end(), {"--", "/bin/echo", "a rank"});
    return expect_failure(words, code);
  }
};

// The client of the metrics of a launcher.
class Scraper {
 public:
  explicit Scraper(int port) : address_(resolve_now("127.0.0.1", port).addresses.at(0)) {}

  UniqueFd connect() const { return connect_to(address_, Deadline(30s)); }

  // The whole answer; empty if there was none.
  std::string answer_to(const std::string& request) const {
    const auto socket = connect();
    send_to(socket.get(), request);
    std::string answer;
    std::array<char, 4096> buffer;
    const Deadline deadline(30s);
    while (wait_for(socket.get(), POLLIN, deadline)) {
      const auto count = ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count <= 0) break;
      answer.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return answer;
  }

  std::string get(const std::string& path = "/metrics", const std::string& token = kToken) const {
    return answer_to("GET " + path + " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + token + "\r\n\r\n");
  }

  // That of rank 1; -1 without it.
  double value(const std::string& name, const std::string& more_labels = "") const {
    for (const auto& line : testing::lines_of(get())) {
      if (line.starts_with(name + "{") && line.find("rank=\"1\"" + more_labels) != std::string::npos)
        return parse_number<double>(line.substr(line.rfind(' ') + 1)).value_or(-1);
    }
    return -1;
  }

  double await_more_than(double least, const std::string& name, const std::string& more_labels = "") const {
    const Deadline deadline(30s);
    double now = value(name, more_labels);
    for (; now <= least && !deadline.expired(); now = value(name, more_labels))
      std::this_thread::sleep_for(10ms);
    EXPECT_GT(now, least) << name;
    return now;
  }

  // False once the server has closed the connection.
  static bool send_to(int socket, const std::string& bytes) {
    return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0;
  }

 private:
  SocketAddress address_;
};

int port_in(const std::string& output) {
  const auto end = output.find("/metrics\n");
  return parse_number<int>(output.substr(output.rfind(':', end) + 1, end - output.rfind(':', end) - 1))
      .value();
}

// Connections that send a byte now and then, as many as the server has.
void hold_all_connections(const Scraper& scraper) {
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 16; ++i) {
    slow.push_back(scraper.connect());
    Scraper::send_to(slow.back().get(), "GET /metr");
  }
  const Deadline deadline(30s);
  for (const auto& socket : slow) {
    while (Scraper::send_to(socket.get(), "i") && !deadline.expired()) std::this_thread::sleep_for(50ms);
  }
  EXPECT_FALSE(deadline.expired()) << "a slow request has not been ended";
}

TEST_F(Metrics, OfARunGrowAndAreGuardedByTheToken) {
  testing::LauncherProcess launcher(
      {"run", "--nproc-per-node", "2", "--rdzv-id", "job", "--metrics-port", "0", "--metrics-token-file",
       file("token"), "--", std::filesystem::read_symlink("/proc/self/exe").string()},
      {.env = {{testing::kScenarioVariable, makes_steps.name()}}, .output = testing::Output::one_pipe});
  launcher.wait_for("/metrics\n");
  const Scraper scraper(port_in(launcher.out()));

  EXPECT_THAT(scraper.get(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                                   HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n")));
  EXPECT_THAT(scraper.get("/metrics", "0123456789abcdeF"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(scraper.get("/metrics", "0123456789abcde"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(scraper.answer_to("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(scraper.get("/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(scraper.answer_to("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
                                "Authorization: Bearer " +
                                std::string(kToken) + "\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(scraper.get("/metrics?" + std::string(100'000, 'x')), ::testing::Not(HasSubstr(" 200 ")));

  for (const auto* const name : {"lockstep_steps_total", "lockstep_calls_total",
                                 "lockstep_communication_bytes_total", "lockstep_phase_seconds_total"}) {
    const std::string labels = std::string(name) == "lockstep_phase_seconds_total" ? ",phase=\"other\"" : "";
    scraper.await_more_than(scraper.await_more_than(0, name, labels), name, labels);
  }
  EXPECT_EQ(scraper.value("lockstep_rank_up"), 1);
  EXPECT_GT(scraper.value("lockstep_reported", ",name=\"loss\""), 0);
  EXPECT_THAT(scraper.get(),
              AllOf(HasSubstr("run=\"job\",rank=\"0\",backend=\"shm\","), HasSubstr("\nlockstep_ranks{")));
  hold_all_connections(scraper);
  EXPECT_EQ(scraper.value("lockstep_rank_up"), 1);

  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
}

// A spare was started before it was known which restart it would be.
TEST_F(Metrics, CountTheReplacementOfARank) {
  const std::string rank = LAUNCHER_RANK_PROGRAM;
  testing::LauncherProcess launcher(
      {"run", "--metrics-port", "0", "--on-loss", "replace", "--max-restarts", "1", "--spares", "1", "--",
       rank, "become", "/bin/sh", "-c",
       rank + " phase running; test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3; exec sleep 1000"},
      {.output = testing::Output::one_pipe});
  launcher.wait_for("its replacement runs");
  const Scraper scraper(port_in(launcher.out()));
  const auto counted = [&] {
    for (const auto& line : testing::lines_of(scraper.get("/metrics"))) {
      if (line.starts_with("lockstep_restarts_total{")) return line.ends_with("} 1");
    }
    return false;
  };
  const Deadline deadline(30s);
  while (!counted() && !deadline.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(counted()) << scraper.get();
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
}

TEST_F(Metrics, AreRefusedBeforeARankStarts) {
  EXPECT_THAT(refused({"--metrics-port", "0", "--metrics-bind", "0.0.0.0"}, 2),
              HasSubstr("--metrics-bind 0.0.0.0: other hosts can connect there, so requests need a token; "
                        "add --metrics-token-file FILE"));
  EXPECT_THAT(refused({"--metrics-bind", "127.0.0.1"}, 2),
              HasSubstr("--metrics-bind has no effect without --metrics-port"));
  EXPECT_THAT(refused({"--metrics-port", "65536"}, 2), HasSubstr("--metrics-port 65536: use 1 to 65535"));
  const std::vector<std::string> with_token{"--metrics-port", "0", "--metrics-token-file", file("token")};
  auto with_secret = with_token;
  with_secret.insert(with_secret.end(), {"--secret-file", file("token")});
  EXPECT_THAT(refused(with_secret, 2), HasSubstr("holds the secret of the run; use another text"));
  std::ofstream(file("token")) << "short";
  EXPECT_THAT(refused(with_token, 2), HasSubstr("a secret has at least 16 characters"));

  const auto busy = bound_socket(0, {.only_ipv4 = true});
  ::listen(busy.get(), 1);
  const auto port = std::to_string(bound_port(busy.get()));
  EXPECT_THAT(
      refused({"--metrics-port", port}, 1),
      HasSubstr("metrics cannot be served at 127.0.0.1:" + port + ": Address already in use; choose"));
}

}  // namespace
}  // namespace lockstep
