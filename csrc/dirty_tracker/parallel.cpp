#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"

namespace looseleaf::dirty_tracker {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPollInterval{3};

}  // namespace

void check_threads(unsigned threads) {
  if (threads == 0 || threads > kThreadsMax) {
    throw InvalidInput("THREADS_OUT_OF_RANGE", "threads must be between 1 and " + std::to_string(kThreadsMax));
  }
}

void parallel_for(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work,
                  const std::function<void()>& poll) {
  check_threads(threads);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // Guarded by `mutex`.
  const auto stop = [&](std::exception_ptr why) {
    next.store(count);
    const std::lock_guard<std::mutex> locked(mutex);
    if (!failure) failure = std::move(why);
  };
  const auto run = [&](bool polls) {
    auto polled = Clock::now();
    try {
      for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
        work(i);
        if (polls && Clock::now() - polled >= kPollInterval) {
          poll();
          polled = Clock::now();
        }
      }
    } catch (...) {
      stop(std::current_exception());
    }
  };
  std::vector<std::thread> others;
  const std::size_t wanted = std::min<std::size_t>(threads, count);
  others.reserve(wanted);
  for (std::size_t i = 1; i < wanted; ++i) {
    try {
      others.emplace_back(run, false);
    } catch (const std::exception&) {
      break;  // No thread or no memory for one: those that run do all the work.
    }
  }
  run(poll != nullptr);
  for (auto& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace looseleaf::dirty_tracker
