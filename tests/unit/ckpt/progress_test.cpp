// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_ckpt/progress.h"

#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <future>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::ckpt {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Progress, ShowsAmountAndTotal) {
  EXPECT_EQ(progress_text("writing a.pt", 1'200'000'000, 5'000'000'000),
            "writing a.pt: 1.2 GB of 5.0 GB, 24%");
  EXPECT_EQ(progress_text("reading", 999, 0), "reading: 999 B");
}

TEST(Progress, NeverExceedsTheTotal) {
  EXPECT_EQ(progress_text("reading", 3000, 2000), "reading: 2.0 kB of 2.0 kB, 100%");
}

TEST(Progress, ChoosesUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(999'999), "1.0 MB");
  EXPECT_EQ(bytes_text(123'456'789), "123.5 MB");
  EXPECT_EQ(bytes_text(5'000'000'000'000'000), "5000.0 TB");
}

TEST(Progress, EndsImmediatelyWithTheWork) {
  for (int i = 0; i < 100; ++i) const Progress progress("nothing", 1, [] { return 0; });
}

// A terminal in the place of stderr.
class Terminal {
 public:
  Terminal() {
    if (screen_ < 0 || ::grantpt(screen_) != 0 || ::unlockpt(screen_) != 0)
      throw std::runtime_error("no terminal");
    const int line = ::open(::ptsname(screen_), O_RDWR | O_NOCTTY);
    ::dup2(line, STDERR_FILENO);
    ::close(line);
  }
  ~Terminal() {
    give_back();
    ::close(screen_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Gives stderr back; all that was written to the terminal.
  std::string text() {
    give_back();
    std::string bytes;
    char piece[256];
    for (;;) {
      const auto count = ::read(screen_, piece, sizeof(piece));
      if (count <= 0) return bytes;  // no process has it open any more
      bytes.append(piece, static_cast<std::size_t>(count));
    }
  }

 private:
  void give_back() {
    if (before_ < 0) return;
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    before_ = -1;
  }

  int before_ = ::dup(STDERR_FILENO);
  int screen_ = ::posix_openpt(O_RDWR | O_NOCTTY);
};

TEST(Progress, IsOneLineOnATerminalAndClearedAtTheEnd) {
  Terminal terminal;
  std::promise<void> shown_twice;
  {
    std::uint64_t asked = 0;
    const Progress progress("writing a.pt", 4000, [&] {
      if (++asked == 3) shown_twice.set_value();  // the two before have been written
      return 1000 * asked;
    });
    shown_twice.get_future().wait();
  }
  const auto text = terminal.text();
  EXPECT_THAT(text, StartsWith("\r\x1b[Kwriting a.pt: 1.0 kB of 4.0 kB, 25%"
                               "\r\x1b[Kwriting a.pt: 2.0 kB of 4.0 kB, 50%\r\x1b[K"));
  EXPECT_THAT(text, EndsWith("\r\x1b[K"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace lockstep::ckpt
