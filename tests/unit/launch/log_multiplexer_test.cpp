// SPDX-License-Identifier: BSD-3-Clause
#include "launch/log_multiplexer.h"

#include <algorithm>
#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

bool watches(const LogMultiplexer& logs, int fd) {
  std::vector<pollfd> events;
  logs.watch(events);
  return std::ranges::any_of(events, [&](const pollfd& event) { return event.fd == fd; });
}

// The ranks' pipes fill up and their writes wait, while nobody takes the output.
TEST(LogMultiplexer, StopsReadingARankWhoseOutputIsNotRead) {
  int out[2];
  int err[2];
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(err, O_CLOEXEC), 0);
  const UniqueFd writer(out[1]);
  const UniqueFd other_writer(err[1]);
  LogMultiplexer logs;
  logs.add_rank(0, {.pipe = UniqueFd(out[0])}, {.pipe = UniqueFd(err[0])});

  const std::string lines(4095, 'x');
  int blocks = 0;
  for (; blocks < 10'000 && watches(logs, out[0]); ++blocks) {
    ASSERT_EQ(::write(writer.get(), (lines + "\n").data(), lines.size() + 1),
              static_cast<ssize_t>(lines.size() + 1));
    logs.handle({.fd = out[0], .events = POLLIN, .revents = POLLIN});
  }
  EXPECT_GT(blocks, 10);
  EXPECT_LT(blocks, 200) << "about 256 KiB should be enough";
}

}  // namespace
}  // namespace lockstep::launch
