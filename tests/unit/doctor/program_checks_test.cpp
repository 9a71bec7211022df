// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/checks.h"
#include "unit/doctor/findings.h"

namespace lockstep::doctor::program_checks_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckLibTorch, ReportsTheVersionOrTheFailure) {
  EXPECT_EQ(check_libtorch({.version = "2.13.0", .cpu_capability = "AVX2"}).text,
            "2.13.0, AVX2, without CUDA");
  EXPECT_EQ(check_libtorch({.version = "2.13.0", .cpu_capability = "AVX2", .cuda = "12.8"}).text,
            "2.13.0, AVX2, CUDA 12.8");
  EXPECT_THAT(check_libtorch({.error = "libtorch.so: cannot open"}), is_problem("cannot open"));
}

TEST(CheckBackends, ReportsEachBuiltBackend) {
  const LibTorch libtorch{.backends = {"fake", "gloo", "shm"},
                          .trials = {{.name = "gloo"}, {.name = "shm", .error = "no memory"}}};
  EXPECT_THAT(check_backends(libtorch), ElementsAre(is_ok(), is_ok(), is_problem("no memory")));
}

using Values = std::map<std::string, std::string>;

Findings with(const Values& values, const Ports& ports = {}) {
  return check_environment(Env(values), ports, {.usable = 8});
}

::testing::Matcher<Finding> warns_of(const std::string& name) {
  return AllOf(Field(&Finding::check, name), is_warning("is "));
}

TEST(CheckEnvironment, IsOkWithoutAnyVariable) {
  EXPECT_THAT(with({}), ElementsAre(is_ok()));
  EXPECT_THAT(with({{"OMP_NUM_THREADS", "4"}, {"CUDA_LAUNCH_BLOCKING", "0"}, {"MASTER_PORT", "5"}},
                   {.master_port = 5}),
              ElementsAre(is_ok()));
}

TEST(CheckEnvironment, WarnsOfHarmfulVariables) {
  EXPECT_THAT(with({{"OMP_NUM_THREADS", "1"}}), ElementsAre(warns_of("OMP_NUM_THREADS")));
  EXPECT_THAT(check_environment(Env(Values{{"OMP_NUM_THREADS", "1"}}), {}, {.usable = 1}),
              ElementsAre(is_ok()));
  EXPECT_THAT(with({{"CUDA_LAUNCH_BLOCKING", "1"}}), ElementsAre(warns_of("CUDA_LAUNCH_BLOCKING")));
  EXPECT_THAT(with({{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}}),
              ElementsAre(warns_of("TORCH_DISTRIBUTED_DEBUG")));
  EXPECT_THAT(with({{"WORLD_SIZE", "4"}}), ElementsAre(warns_of("WORLD_SIZE")));
}

TEST(CheckEnvironment, WarnsOfAProxyWithoutExceptions) {
  const auto proxy = with({{"https_proxy", "http://me:password@proxy:3128"}});
  EXPECT_THAT(proxy, ElementsAre(is_warning("go through a proxy")));
  EXPECT_THAT(proxy.at(0).text, Not(HasSubstr("password")));
  EXPECT_THAT(with({{"https_proxy", "http://proxy:3128"}, {"no_proxy", ".cluster"}}), ElementsAre(is_ok()));
}

TEST(CheckEnvironment, NeedsAFreeMasterPort) {
  EXPECT_THAT(with({{"MASTER_PORT", "x"}}), ElementsAre(is_problem("is \"x\", which is not a port")));
  EXPECT_THAT(with({{"MASTER_PORT", "5"}}, {.master_port = 5, .master_port_error = "in use"}),
              ElementsAre(is_problem("is taken: in use")));
}

}  // namespace
}  // namespace lockstep::doctor::program_checks_test
