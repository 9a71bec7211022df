// SPDX-License-Identifier: BSD-3-Clause
#include "launch/host_control.h"

#include <csignal>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "base/unique_fd.h"
#include "launch/hosts.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class HostControlStream : public ::testing::Test {
 protected:
  HostControlStream() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    in_ = UniqueFd(ends[0]);
    out_ = UniqueFd(ends[1]);
  }
  void write(const std::string& text) const {
    ASSERT_EQ(::write(out_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  UniqueFd in_;
  UniqueFd out_;
};

TEST_F(HostControlStream, BeginsWithTheOrderAndGoesOnWithSignals) {
  const NodeOrder sent{.arguments = {"run", "a b\n'"}, .environment = {{"A", "=\n"}}, .folder = "/tmp"};
  write(encode(sent) + "\n15\n\n2\n1");
  const auto order = read_node_order(in_.get(), Deadline(milliseconds(1000)));
  EXPECT_EQ(order.arguments, sent.arguments);
  EXPECT_EQ(order.environment, sent.environment);
  EXPECT_EQ(order.folder, "/tmp");
  HostControl control(in_.get());
  EXPECT_EQ(control.next_signal(), SIGTERM);
  EXPECT_EQ(control.next_signal(), SIGINT);
  EXPECT_EQ(control.next_signal(), std::nullopt);
  write("0\n");
  EXPECT_EQ(control.next_signal(), 10);
  EXPECT_EQ(control.lost(), "");
}

TEST_F(HostControlStream, ItsEndIsAHangupOnce) {
  HostControl control(in_.get());
  EXPECT_EQ(control.next_signal(), std::nullopt);
  out_.reset();
  EXPECT_EQ(control.next_signal(), SIGHUP);
  EXPECT_EQ(control.next_signal(), std::nullopt);
  EXPECT_EQ(control.lost(), "the connection to lockstep run --hosts closed");
}

TEST_F(HostControlStream, SilenceIsAHangup) {
  HostControl patient(in_.get());
  HostControl control(in_.get(), milliseconds(1));
  while (control.poll_timeout() > milliseconds(1)) ::usleep(100);
  ::usleep(2000);
  EXPECT_EQ(control.next_signal(), SIGHUP);
  EXPECT_EQ(control.lost(), "lockstep run --hosts is silent");
  EXPECT_EQ(patient.next_signal(), std::nullopt);
}

TEST_F(HostControlStream, RefusesWhatIsNotAnOrder) {
  write("{}\n");
  EXPECT_THROW(read_node_order(in_.get(), Deadline(milliseconds(1000))), LaunchError);
  for (const auto* const order :
       {R"({"order":1})", R"({"order":9,"lockstep":"99.1"})", R"({"order":2,"lockstep":"99.1"})"}) {
    write(fmt::format("{}\n", order));
    EXPECT_THAT([&] { read_node_order(in_.get(), Deadline(milliseconds(1000))); },
                ::testing::ThrowsMessage<LaunchError>(
                    AllOf(HasSubstr("has Lockstep " + lockstep::version()),
                          HasSubstr(std::string_view(order).find("99.1") != std::string_view::npos
                                        ? "has 99.1"
                                        : "has an earlier one"))));
  }
  write("without an end");
  EXPECT_THAT([&] { read_node_order(in_.get(), Deadline(milliseconds(10))); },
              ::testing::ThrowsMessage<LaunchError>(HasSubstr("no complete line")));
}

TEST(NodeOrders, NameWhatIsNotUtf8) {
  const auto complaint_about = [](const NodeOrder& order) -> std::string {
    try {
      return encode(order);
    } catch (const ArgumentError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(complaint_about({.arguments = {"run", "caf\xe9"}}), HasSubstr(R"(the argument "caf\ufffd")"));
  EXPECT_THAT(complaint_about({.folder = "/\xff"}), HasSubstr(R"(the working directory "/\ufffd")"));
  EXPECT_THAT(complaint_about({.environment = {{"KEY", "secret\xff"}}}),
              AllOf(HasSubstr("the variable \"KEY\""), Not(HasSubstr("secret"))));
}

std::vector<std::string> texts_of(const std::string& list) {
  std::vector<std::string> texts;
  for (const auto& entry : parse_hosts(list)) {
    texts.push_back(entry.name + " " + (entry.ranks ? std::to_string(*entry.ranks) : "-"));
  }
  return texts;
}

TEST(Hosts, AreNamesAndNumbersOfRanks) {
  EXPECT_THAT(texts_of("a,me@b:4,10.0.0.1:2"), ElementsAre("a -", "me@b 4", "10.0.0.1 2"));
  EXPECT_THAT(texts_of("fd00::1,[fd00::2],me@[fd00::3]:8"),
              ElementsAre("fd00::1 -", "fd00::2 -", "me@fd00::3 8"));
  for (const auto* wrong : {"", "a:0", "a:x", "a:", ":4", "-o", "a,a", "a,me@a", "a,,b"}) {
    EXPECT_THROW(parse_hosts(wrong), ArgumentError) << wrong;
  }
  EXPECT_THAT([] { parse_hosts("a,me@a"); }, ThrowsMessage<ArgumentError>(HasSubstr("as in a:4")));
}

}  // namespace
}  // namespace lockstep::launch
