// Operators over lists of tensors that together exceed a device's budget:
// values are those of the same calls over tensors that no hook manages.
#include <functional>

#include "tests/libtorch/accelerator/device/device_hook_fixture.h"

namespace terrace {
namespace {

using Tensors = std::vector<at::Tensor>;

class DeviceListsTest : public DeviceHookTest {
 protected:
  static constexpr int kCount = 11;

  // Of several sizes, of which the window has about three.
  void SetUp() override { Make(/*on_device=*/4, /*in_memory=*/6); }

  static Tensors Ordinary(int seed) {
    at::manual_seed(static_cast<uint64_t>(seed));
    Tensors tensors;
    for (int i = 0; i < kCount; ++i) {
      const int64_t numbers = i % 4 == 3 ? kNumbers / 8 : kNumbers - i;
      tensors.push_back((at::rand({numbers}) + 0.5).to(kDevice));
    }
    return tensors;
  }
  Tensors Below(int seed) {
    Tensors tensors = Ordinary(seed);
    for (int i = 0; i < kCount; ++i) {
      Managed("list " + std::to_string(seed) + " " + std::to_string(i),
              tensors[static_cast<size_t>(i)]);
    }
    return tensors;
  }
  static void ExpectEqual(const Tensors& left, const Tensors& right) {
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_TRUE(at::equal(left[i].cpu(), right[i].cpu())) << i;
    }
  }
  // Of a call over two lists, which writes to the first or returns a list.
  void ExpectAsOrdinary(
      const std::function<Tensors(Tensors&, Tensors&)>& call) {
    Tensors expected = Ordinary(1);
    Tensors expected_other = Ordinary(2);
    const Tensors expected_results = call(expected, expected_other);
    Tensors below = Below(1);
    Tensors other = Below(2);
    const Tensors results = call(below, other);
    ExpectEqual(results, expected_results);
    ExpectEqual(below, expected);
    ExpectEqual(other, expected_other);
    EXPECT_TRUE(hook().error().ok()) << hook().error();
    const TierStats hbm = HbmStats();
    EXPECT_LE(hbm.peak_bytes, hbm.budget_bytes);
  }
};

TEST_F(DeviceListsTest, InPlace) {
  ExpectAsOrdinary([](Tensors& left, Tensors& right) {
    at::_foreach_add_(left, right, 0.5);
    at::_foreach_mul_(left, 3);
    at::_foreach_lerp_(left, right, 0.25);
    at::_foreach_copy_(right, left);
    return Tensors();
  });
}

TEST_F(DeviceListsTest, WhatIsReturnedIsWhole) {
  ExpectAsOrdinary([](Tensors& left, Tensors& right) {
    Tensors results = at::_foreach_sub(left, right);
    for (const at::Tensor& norm : at::_foreach_norm(left)) {
      results.push_back(norm);
    }
    EXPECT_EQ(results.size(), 2u * kCount);
    return results;
  });
}

TEST_F(DeviceListsTest, EachElementHasItsOwnFactor) {
  ExpectAsOrdinary([](Tensors& left, Tensors& right) {
    std::vector<at::Scalar> factors;
    for (int i = 0; i < kCount; ++i) factors.emplace_back(0.5 + i);
    at::_foreach_add_(left, factors);
    at::_foreach_addcdiv_(left, right, right, factors);
    at::_foreach_addcmul_(left, right, right,
                          at::arange(kCount, at::kFloat) / 8);
    return Tensors();
  });
}

TEST_F(DeviceListsTest, GradientsAreThoseOfTheWhole) {
  ExpectAsOrdinary([](Tensors& left, Tensors& right) {
    Tensors leaves;
    for (at::Tensor& each : left) {
      leaves.push_back(each.detach().requires_grad_());
    }
    Tensors products = at::_foreach_mul(leaves, right);
    at::Tensor sum = at::zeros({}, OnDevice());
    for (const at::Tensor& each : products) sum = sum + each.sum();
    sum.backward();
    Tensors gradients;
    for (const at::Tensor& each : leaves) gradients.push_back(each.grad());
    return gradients;
  });
}

TEST_F(DeviceListsTest, AScalersCheckSeesAllElements) {
  ExpectAsOrdinary([](Tensors& left, Tensors& right) {
    at::Tensor found = at::zeros({}, OnDevice());
    const at::Tensor scale = at::full({}, 0.5, OnDevice());
    at::_amp_foreach_non_finite_check_and_unscale_(left, found, scale);
    right.back().fill_(INFINITY);
    at::Tensor infinite = at::zeros({}, OnDevice());
    at::_amp_foreach_non_finite_check_and_unscale_(right, infinite, scale);
    EXPECT_EQ(found.item<float>(), 0);
    EXPECT_EQ(infinite.item<float>(), 1);
    return Tensors();
  });
}

// Both elements of a pair are one storage.
TEST_F(DeviceListsTest, ViewsOfOneStorageMayBeInSeveralParts) {
  const Tensors below = Below(3);
  const Tensors ordinary = Ordinary(3);
  const auto halves = [](const Tensors& tensors) {
    Tensors views;
    for (const at::Tensor& each : tensors) {
      views.push_back(each.narrow(0, 0, 64));
      views.insert(views.begin(), each.narrow(0, 64, 64));
    }
    return views;
  };
  at::_foreach_add_(halves(below), 1);
  at::_foreach_add_(halves(ordinary), 1);
  ExpectEqual(below, ordinary);
}

TEST_F(DeviceListsTest, AnElementThatExceedsTheBudgetAloneIsRefused) {
  const at::Tensor large = at::ones({kNumbers * 16}, OnDevice());
  const absl::Status managed = hook().Manage({{"large", large}});
  if (!managed.ok()) return;  // which is as well
  Tensors list = Below(4);
  list.push_back(large);
  EXPECT_THROW(at::_foreach_add_(list, 1), c10::Error);
  EXPECT_TRUE(absl::IsResourceExhausted(hook().error())) << hook().error();
}

}  // namespace
}  // namespace terrace
