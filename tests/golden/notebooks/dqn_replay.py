# Reinforcement learning: an environment of our own, a replay deque, an epsilon schedule, a target network, policy gradients.
# gpu-cells: 13
# %% imports
import random
from collections import deque, namedtuple
from itertools import count
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
import torch.nn.functional as F
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
# %% env
class Corridor:
    """Walk right to the goal; every step costs."""
    def __init__(self, n=8, rng=None):
        self.n = n
        self.rng = rng or np.random.default_rng(5)
        self.episodes = 0
    def reset(self):
        self.pos, self.t = int(self.rng.integers(0, 3)), 0
        self.episodes += 1
        return self._obs()
    def _obs(self):
        one = np.zeros(self.n, dtype=np.float32)
        one[self.pos] = 1
        return one
    def step(self, action):
        slip = self.rng.random() < 0.1
        self.pos = min(max(self.pos + (1 if (action == 1) != slip else -1), 0), self.n - 1)
        self.t += 1
        done = self.pos == self.n - 1
        return self._obs(), (1.0 if done else -0.05), done, self.t >= 30
env = Corridor()
env.reset().nonzero()
# %% replay
Transition = namedtuple('Transition', ('state', 'action', 'next_state', 'reward'))

class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)
    def push(self, *args):
        self.memory.append(Transition(*args))
    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)
    def __len__(self):
        return len(self.memory)

memory = ReplayMemory(300)
# %% nets
class DQN(nn.Module):
    def __init__(self, n_obs, n_act):
        super().__init__()
        self.l1, self.l2 = nn.Linear(n_obs, 32), nn.Linear(32, n_act)
    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))
policy_net = DQN(env.n, 2).to(device)
target_net = DQN(env.n, 2).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=5e-3, amsgrad=True)
# %% act
steps_done, EPS_START, EPS_END, EPS_DECAY, GAMMA, TAU = 0, 0.9, 0.05, 60, 0.97, 0.05
def select_action(state):
    global steps_done
    eps = EPS_END + (EPS_START - EPS_END) * np.exp(-steps_done / EPS_DECAY)
    steps_done += 1
    if random.random() > eps:
        with torch.no_grad():
            return policy_net(state).argmax(1).view(1, 1)
    return torch.tensor([[random.randrange(2)]], device=device)
# %% optimize
def optimize_model(batch_size=32):
    if len(memory) < batch_size:
        return
    batch = Transition(*zip(*memory.sample(batch_size)))
    mask = torch.tensor([s is not None for s in batch.next_state], device=device)
    nxt = torch.cat([s for s in batch.next_state if s is not None])
    q = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    v = torch.zeros(batch_size, device=device)
    with torch.no_grad():
        v[mask] = target_net(nxt).max(1).values
    loss = F.smooth_l1_loss(q, (v * GAMMA + torch.cat(batch.reward)).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss.item()
# %% loop
durations, last_loss = [], None
def run_episodes(n):
    global last_loss
    for _ in range(n):
        state = torch.from_numpy(env.reset()).unsqueeze(0).to(device)
        for t in count():
            action = select_action(state)
            obs, reward, done, truncated = env.step(action.item())
            reward = torch.tensor([reward], device=device)
            next_state = None if done else torch.from_numpy(obs).unsqueeze(0).to(device)
            memory.push(state, action, next_state, reward)
            state = next_state
            last_loss = optimize_model() or last_loss
            target, source = target_net.state_dict(), policy_net.state_dict()
            for key in source:
                target[key] = source[key] * TAU + target[key] * (1 - TAU)
            target_net.load_state_dict(target)
            if done or truncated:
                durations.append(t + 1)
                break
# %% episodes
run_episodes(5)
print(durations, len(memory), steps_done, f'{last_loss:.5f}')
# %% inspect
memory.memory[0], len(memory.memory), memory.memory.maxlen
# %% episodes-2
run_episodes(8)
print(durations[5:], len(memory), steps_done, f'{last_loss:.5f}', env.episodes)
# %% shrink
memory.memory = deque(list(memory.memory)[-100:], maxlen=100)
len(memory), memory.memory.maxlen, env.pos
# %% episodes-3
run_episodes(4)
print(durations[13:], len(memory), f'{last_loss:.5f}')
# %% rng
random.random(), np.random.rand(), torch.rand(1), env.rng.random()
# %% values
with torch.no_grad():
    q = policy_net(torch.eye(env.n, device=device))
print(q.argmax(1).tolist())
q.cpu().numpy().round(3)
# %% greedy
state, path = torch.from_numpy(env.reset())[None].to(device), []
for _ in range(15):
    a = policy_net(state).argmax(1).item()
    path.append(a)
    obs, r, done, _ = env.step(a)
    if done: break
    state = torch.as_tensor(obs, device=device).unsqueeze(0)
path, env.pos
# %% reinforce
policy = nn.Sequential(nn.Linear(env.n, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
popt = optim.Adam(policy.parameters(), lr=2e-2)
returns = deque(maxlen=20)
def reinforce(episodes):
    for _ in range(episodes):
        obs, logs, rewards = env.reset(), [], []
        for _ in range(30):
            dist = torch.distributions.Categorical(logits=policy(torch.from_numpy(obs).to(device)))
            a = dist.sample()
            logs.append(dist.log_prob(a))
            obs, r, done, cut = env.step(a.item())
            rewards.append(r)
            if done or cut: break
        g, out = 0., []
        for r in reversed(rewards):
            g = r + GAMMA * g
            out.insert(0, g)
        out = torch.tensor(out, device=device)
        loss = -(torch.stack(logs) * (out - out.mean())).sum()
        popt.zero_grad(); loss.backward(); popt.step()
        returns.append(sum(rewards))
reinforce(6)
print([round(v, 2) for v in returns])
# %% reinforce-2
reinforce(6)
print([round(v, 2) for v in list(returns)[6:]], env.episodes)
# %% prior
priorities = torch.tensor([abs(t.reward.item()) + 0.01 for t in memory.memory])
picks = np.random.choice(len(memory), 5, p=(priorities / priorities.sum()).double().numpy() / (priorities / priorities.sum()).double().numpy().sum())
picks
# %% batch
chosen = Transition(*zip(*[memory.memory[i] for i in picks]))
torch.cat(chosen.state).shape, torch.cat(chosen.reward), type(chosen).__name__, memory.memory[0].state.device
# %% to-host
host_memory = [Transition(*(v.cpu() if v is not None else None for v in t)) for t in memory.memory]
host_memory[-1].action.device, len(host_memory)
# %% host-stats
np.mean([t.reward.item() for t in host_memory]).round(4), sum(t.next_state is None for t in host_memory)
