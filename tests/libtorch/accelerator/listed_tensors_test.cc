#include "libtorch/accelerator/listed_tensors.h"

#include <chrono>
#include <future>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(ListedTensors, ALookSeesTheLastList) {
  ListedTensors listed;
  EXPECT_THAT(ListedTensors::Look(listed).tensors(), IsEmpty());
  listed.Set({nullptr, nullptr});
  EXPECT_THAT(ListedTensors::Look(listed).tensors(), SizeIs(2));
}

TEST(ListedTensors, WhatIsLookedAtStaysUntilTheLooksEnd) {
  ListedTensors listed;
  listed.Set({nullptr, nullptr});
  auto look = std::make_unique<ListedTensors::Look>(listed);
  std::future<void> set =
      std::async(std::launch::async, [&] { listed.Set({nullptr}); });
  EXPECT_EQ(set.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  EXPECT_THAT(look->tensors(), SizeIs(2));
  look.reset();
  set.get();
  EXPECT_THAT(ListedTensors::Look(listed).tensors(), SizeIs(1));
}

}  // namespace
}  // namespace terrace
