// What the native tests check with, and the tests that stand in files of their own.
#pragma once

#include <cstdio>
#include <functional>

#include "errors.h"

inline int failed = 0;
inline int passed = 0;

inline void expect(bool truth, const char* text, const char* place) {
  if (truth) return;
  ++failed;
  std::printf("%s: expected %s\n", place, text);
}
#define EXPECT(...) expect((__VA_ARGS__), #__VA_ARGS__, LOOSELEAF_PLACE)

template <typename Error>
void expect_throws(const std::function<void()>& call, const char* place) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  expect(false, "an exception", place);
}
#define EXPECT_THROWS(Error, ...) expect_throws<Error>([&] { __VA_ARGS__; }, LOOSELEAF_PLACE)

inline void run(const char* name, void (*test)()) {
  const int before = failed;
  test();
  if (failed == before) {
    ++passed;
  } else {
    std::printf("FAILED %s\n", name);
  }
}
#define RUN(test) run(#test, &test)

void run_device_tracker_tests();
void run_fingerprint_tests();
