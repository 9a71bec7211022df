// SPDX-License-Identifier: BSD-3-Clause

#include "modules/broadcast.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "unit/ddp/fake_group.h"

namespace lockstep::modules {
namespace {

// Small ones, which go together, a large one, which goes by itself, and one that is alone of its dtype.
std::vector<NamedTensor> tensors() {
  return {{"a", torch::ones({3})},
          {"b", torch::ones({4})},
          {"large", torch::ones({600'000})},
          {"alone", torch::ones({2}, torch::kInt)}};
}

TEST(Broadcast, AutogradDetectsAChangedBuffer) {
  const auto sent = tensors();
  broadcast_from(testing::FakeGroup().group, 1, sent, std::source_location::current());
  for (const auto& item : sent) EXPECT_EQ(item.tensor._version(), 1) << item.name;
}

TEST(Broadcast, TheSourceKeepsItsValues) {
  const auto sent = tensors();
  broadcast_from(testing::FakeGroup().group, 0, sent, std::source_location::current());
  for (const auto& item : sent) EXPECT_EQ(item.tensor._version(), 0) << item.name;
}

TEST(Broadcast, ChangingALargeBufferThatBackwardNeedsIsAnError) {
  const std::vector<NamedTensor> buffers{{"scale", torch::ones({600'000})}};
  const auto weight = torch::ones({600'000}, torch::requires_grad());
  const auto loss = (weight * buffers.front().tensor).sum();
  broadcast_from(testing::FakeGroup().group, 1, buffers, std::source_location::current());
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace lockstep::modules
