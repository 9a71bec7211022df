// SPDX-License-Identifier: BSD-3-Clause
#include "base/shared_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/error_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SharedLibrary, TakesTheFirstFileThatCanBeLoaded) {
  const SharedLibrary library("libm", {"libnothere.so.9", "libm.so.6"}, "libc6");
  double (*cosine)(double) = library["cos"];
  EXPECT_EQ(cosine(0), 1);
  EXPECT_THAT(testing::error_of([&] { library["no_such_function"]; }),
              HasSubstr("libm has no no_such_function"));
}

TEST(SharedLibrary, NamesThePackageToInstall) {
  EXPECT_THAT(testing::error_of([] {
                SharedLibrary("libx", {"libx.so.1", "libx.so.2"}, "libx-dev");
              }),
              AllOf(HasSubstr("libx could not be loaded"), HasSubstr("libx.so.1"), HasSubstr("libx.so.2"),
                    HasSubstr("install it (Debian: libx-dev)")));
}

}  // namespace
}  // namespace lockstep
