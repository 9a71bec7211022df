// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/option_rules.h"

#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "unit/ddp/fake_group.h"

namespace lockstep::ddp {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::string text_of(Feature feature) {
  const std::string name = name_of(feature);
  if (feature == Feature::find_unused_parameters) return "`find_unused_parameters` without `static_graph`";
  if (feature == Feature::skip_found_unused)
    return "`skip_all_reduce_unused_params` with `find_unused_parameters`";
  const bool is_code = feature <= Feature::static_graph || feature == Feature::graphed_step ||
                       feature == Feature::ignored_tensors || feature == Feature::local_sgd ||
                       feature == Feature::verified_step;
  return is_code || name.ends_with("()") ? "`" + name + "`" : name;
}

std::string page() {
  const std::ifstream file(LOCKSTEP_DDP_PAGE);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(OptionRules, ThePageShowsTheTable) {
  std::string table = "| feature | excludes | reason | instead |\n|---|---|---|---|\n";
  for (const auto& [option, mode, reason, remedy] : kExclusions)
    table += fmt::format("| {} | {} | {} | {} |\n", text_of(option), text_of(mode), reason, remedy);
  const std::string begin = "<!-- exclusions: begin -->\n";
  const auto text = page();
  const auto first = text.find(begin);
  const auto last = text.find("<!-- exclusions: end -->");
  ASSERT_TRUE(first < last && last != std::string::npos) << "docs/ddp.md has lost its markers of exclusions";
  const auto from = first + begin.size();
  EXPECT_TRUE(text.substr(from, last - from) == table)
      << "docs/ddp.md differs from kExclusions; paste this between its markers:\n"
      << table;
}

TEST(OptionRules, EveryOptionIsRecognized) {
  const testing::FakeGroup fake;
  const auto optimizer = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  };
  const DistributedDataParallelOptions options{.bucket_cap_mb = 1,
                                               .find_unused_parameters = true,
                                               .delay_all_reduce_named_params = {"weight"},
                                               .mixed_precision = MixedPrecision{},
                                               .skip_all_reduce_unused_params = true,
                                               .bucket_cap_mb_list = {1},
                                               .lazy_bucket_allocation = true,
                                               .optimizer_in_backward = optimizer};
  const auto used = features_of(options, fake.group);
  for (unsigned i = 0; i < static_cast<unsigned>(Feature::static_graph); ++i)
    EXPECT_THAT(used, Contains(static_cast<Feature>(i))) << kFeatureNames[i];
  EXPECT_THAT(features_of({.static_graph = true}, fake.group), ElementsAre(Feature::static_graph));
  EXPECT_THAT(features_of({}, fake.group), IsEmpty());
}

TEST(OptionRules, EachModeNamesWhatItExcludes) {
  const testing::FakeGroup fake;
  const auto expect = [&](Feature feature, Feature mode, const std::string& text) {
    EXPECT_THAT([&] { check({feature}, mode, fake.group); }, ThrowsMessage<ArgumentError>(HasSubstr(text)));
    EXPECT_NO_THROW(check({}, mode, fake.group));
  };
  expect(Feature::static_graph, Feature::mixed_precision, "mixed_precision excludes static_graph");
  expect(Feature::optimizer_in_backward, Feature::comm_hook,
         "DistributedDataParallel: optimizer_in_backward allows no communication hook");
  expect(Feature::skip_found_unused, Feature::join,
         "join() does not support skip_all_reduce_unused_params with find_unused_parameters");
  expect(Feature::delay_all_reduce_named_params, Feature::module_change,
         "With delay_all_reduce_named_params this cannot be followed; wrap the module anew");
  expect(Feature::bucket_cap_mb, Feature::bucket_cap_mb_list,
         "bucket_cap_mb or bucket_cap_mb_list, not both");
  expect(Feature::optimizer_in_backward, Feature::verified_step,
         "StepVerifier: it does not support optimizer_in_backward: the optimizer steps before");
}

}  // namespace
}  // namespace lockstep::ddp
