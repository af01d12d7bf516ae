#!/usr/bin/env python3
"""Writes networks of well-known families with random weights as ONNX files, for `make bench-rivals RIVALS="--only latency --onnx FILE..."`.

    zoo.py FOLDER [--open-axes] [NAME...]

All where none is named. With --open-axes batches are unknown, and lengths of texts, heights and widths of images where the network takes any, and an
input is written beside the model. Statistics of batch normalizations are those of the input, so that activations keep their scale. Needs torch, torchvision
and onnx."""
import pathlib, sys, warnings
import numpy as np
import torch, torchvision
from torch import nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
V = torchvision.models

class Act(nn.Module):
    """ResNet-50 V2: pre-activation."""
    def __init__(self):
        super().__init__()
        class Block(nn.Module):
            def __init__(s, cin, mid, stride):
                super().__init__()
                cout = 4 * mid
                s.bn0 = nn.BatchNorm2d(cin)
                s.c1, s.b1 = nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid)
                s.c2, s.b2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
                s.c3 = nn.Conv2d(mid, cout, 1)
                s.down = nn.Conv2d(cin, cout, 1, stride) if cin != cout else (nn.MaxPool2d(1, stride) if stride > 1 else None)
            def forward(s, x):
                p = F.relu(s.bn0(x))
                short = s.down(p if isinstance(s.down, nn.Conv2d) else x) if s.down is not None else x
                y = F.relu(s.b1(s.c1(p)))
                y = F.relu(s.b2(s.c2(y)))
                return short + s.c3(y)
        layers, cin = [nn.Conv2d(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)], 64
        for mid, n, stride in [(64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1)]:
            for i in range(n):
                layers.append(Block(cin, mid, stride if i == n - 1 else 1))
                cin = 4 * mid
        layers += [nn.BatchNorm2d(cin), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 1000)]
        self.net = nn.Sequential(*layers)
    def forward(self, x):
        return self.net(x)

class UNet(nn.Module):
    def __init__(self, c=32, up="convt"):
        super().__init__()
        def double(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        w = [c, 2 * c, 4 * c, 8 * c, 16 * c]
        self.down = nn.ModuleList([double(3, w[0])] + [double(w[i], w[i + 1]) for i in range(4)])
        if up == "convt":
            self.up = nn.ModuleList([nn.ConvTranspose2d(w[i + 1], w[i], 2, 2) for i in reversed(range(4))])
        else:
            self.up = nn.ModuleList([nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(w[i + 1], w[i], 1)) for i in reversed(range(4))])
        self.mix = nn.ModuleList([double(2 * w[i], w[i]) for i in reversed(range(4))])
        self.out = nn.Conv2d(w[0], 2, 1)
    def forward(self, x):
        kept = []
        for i, d in enumerate(self.down):
            x = d(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for i, (u, m) in enumerate(zip(self.up, self.mix)):
            x = m(torch.cat([kept[3 - i], u(x)], 1))
        return self.out(x)

class Yolo(nn.Module):
    """As YOLOv8n: SiLU, C2f blocks, SPPF, upsampling, concatenations, decoupled heads with DFL."""
    def __init__(self):
        super().__init__()
        class C(nn.Module):
            def __init__(s, i, o, k=1, st=1):
                super().__init__()
                s.c, s.b = nn.Conv2d(i, o, k, st, k // 2, bias=False), nn.BatchNorm2d(o)
            def forward(s, x):
                return F.silu(s.b(s.c(x)))
        class C2f(nn.Module):
            def __init__(s, i, o, n, add):
                super().__init__()
                s.h, s.add = o // 2, add
                s.a, s.z = C(i, o), C((2 + n) * s.h, o)
                s.m = nn.ModuleList([nn.Sequential(C(s.h, s.h, 3), C(s.h, s.h, 3)) for _ in range(n)])
            def forward(s, x):
                y = list(s.a(x).chunk(2, 1))
                for m in s.m:
                    y.append(y[-1] + m(y[-1]) if s.add else m(y[-1]))
                return s.z(torch.cat(y, 1))
        class SPPF(nn.Module):
            def __init__(s, c):
                super().__init__()
                s.a, s.b = C(c, c // 2), C(2 * c, c)
            def forward(s, x):
                y = [s.a(x)]
                for _ in range(3):
                    y.append(F.max_pool2d(y[-1], 5, 1, 2))
                return s.b(torch.cat(y, 1))
        self.s1 = nn.Sequential(C(3, 16, 3, 2), C(16, 32, 3, 2), C2f(32, 32, 1, True), C(32, 64, 3, 2), C2f(64, 64, 2, True))
        self.s2 = nn.Sequential(C(64, 128, 3, 2), C2f(128, 128, 2, True))
        self.s3 = nn.Sequential(C(128, 256, 3, 2), C2f(256, 256, 1, True), SPPF(256))
        self.p4, self.p3 = C2f(384, 128, 1, False), C2f(192, 64, 1, False)
        self.d3, self.n4 = C(64, 64, 3, 2), C2f(192, 128, 1, False)
        self.d4, self.n5 = C(128, 128, 3, 2), C2f(384, 256, 1, False)
        self.box = nn.ModuleList([nn.Sequential(C(c, 64, 3), C(64, 64, 3), nn.Conv2d(64, 64, 1)) for c in (64, 128, 256)])
        self.cls = nn.ModuleList([nn.Sequential(C(c, 80, 3), C(80, 80, 3), nn.Conv2d(80, 80, 1)) for c in (64, 128, 256)])
    def forward(self, x):
        a = self.s1(x)
        b = self.s2(a)
        c = self.s3(b)
        up = lambda t: F.interpolate(t, scale_factor=2.0, mode="nearest")
        p4 = self.p4(torch.cat([up(c), b], 1))
        p3 = self.p3(torch.cat([up(p4), a], 1))
        n4 = self.n4(torch.cat([self.d3(p3), p4], 1))
        n5 = self.n5(torch.cat([self.d4(n4), c], 1))
        boxes, classes = [], []
        for i, f in enumerate((p3, n4, n5)):
            boxes.append(self.box[i](f).flatten(2))
            classes.append(self.cls[i](f).flatten(2))
        box, cls = torch.cat(boxes, 2), torch.cat(classes, 2)
        n = box.shape[0]
        d = box.reshape(n, 4, 16, box.shape[2]).transpose(2, 1).softmax(1)
        d = (d * torch.arange(16, dtype=torch.float32).reshape(1, 16, 1, 1)).sum(1)
        return torch.cat([d, cls.sigmoid()], 1)

def dcgan():
    c, up = 64, lambda i, o, s=2, p=1: [nn.ConvTranspose2d(i, o, 4, s, p, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*up(100, 8 * c, 1, 0), *up(8 * c, 4 * c), *up(4 * c, 2 * c), *up(2 * c, c), nn.ConvTranspose2d(c, 3, 4, 2, 1, bias=False), nn.Tanh())

class Layer(nn.Module):
    def __init__(self, d, h, mlp, causal=False, pre=True, act="gelu"):
        super().__init__()
        self.h, self.causal, self.pre, self.act = h, causal, pre, act
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.f1, self.f2 = nn.Linear(d, mlp), nn.Linear(mlp, d)
    def attend(self, x):
        b, t, d = x.shape
        split = lambda y: y.view(b, t, self.h, d // self.h).transpose(1, 2)
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        s = q @ k.transpose(-1, -2) / (d // self.h) ** 0.5
        if self.causal:
            s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -3e38)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
    def mlp(self, x):
        y = self.f1(x)
        y = 0.5 * y * (1 + torch.tanh(0.7978845608 * (y + 0.044715 * torch.pow(y, 3.0)))) if self.act == "gelu_new" else F.gelu(y)
        return self.f2(y)
    def forward(self, x):
        if self.pre:
            x = x + self.attend(self.n1(x))
            return x + self.mlp(self.n2(x))
        x = self.n1(x + self.attend(x))
        return self.n2(x + self.mlp(x))

class Text(nn.Module):
    def __init__(self, vocab, t, d, h, n, head, **kw):
        super().__init__()
        self.e, self.p = nn.Embedding(vocab, d), nn.Embedding(512, d)
        self.n0 = nn.LayerNorm(d)
        self.layers = nn.Sequential(*[Layer(d, h, 4 * d, **kw) for _ in range(n)])
        self.head = nn.Linear(d, vocab, bias=False) if head else nn.Identity()
        self.pre = kw.get("pre", True)
    def forward(self, ids):
        x = self.e(ids) + self.p(torch.arange(ids.shape[1]))
        x = self.layers(x) if self.pre else self.layers(self.n0(x))
        return self.head(self.n0(x) if self.pre else x)

class Whisper(nn.Module):
    def __init__(self, t=1500, d=384, h=6, n=4):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(80, d, 3, 1, 1), nn.Conv1d(d, d, 3, 2, 1)
        self.p = nn.Parameter(torch.randn(t, d) * 0.1)
        self.layers, self.n = nn.Sequential(*[Layer(d, h, 4 * d) for _ in range(n)]), nn.LayerNorm(d)
    def forward(self, x):
        x = F.gelu(self.c2(F.gelu(self.c1(x)))).transpose(1, 2)
        return self.n(self.layers(x + self.p))

class Rnn(nn.Module):
    def __init__(self, kind, i, h, n, both):
        super().__init__()
        self.r = kind(i, h, n, batch_first=True, bidirectional=both)
        self.o = nn.Linear(h * (2 if both else 1), 64)
    def forward(self, x):
        return self.o(self.r(x)[0])

class Mixer(nn.Module):
    def __init__(self, d=512, n=8, t=196, dt=256, dc=2048):
        super().__init__()
        self.stem = nn.Conv2d(3, d, 16, 16)
        class B(nn.Module):
            def __init__(s):
                super().__init__()
                s.n1, s.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
                s.a, s.b, s.c, s.e = nn.Linear(t, dt), nn.Linear(dt, t), nn.Linear(d, dc), nn.Linear(dc, d)
            def forward(s, x):
                x = x + s.b(F.gelu(s.a(s.n1(x).transpose(1, 2)))).transpose(1, 2)
                return x + s.e(F.gelu(s.c(s.n2(x))))
        self.blocks, self.n, self.head = nn.Sequential(*[B() for _ in range(n)]), nn.LayerNorm(d), nn.Linear(d, 1000)
    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.n(self.blocks(x)).mean(1))

class SuperRes(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 64, 5, 1, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 9, 3, 1, 1), nn.PixelShuffle(3))
    def forward(self, x):
        return self.net(x)

class Style(nn.Module):
    """Fast style transfer: reflection padding, instance normalization, upsampling."""
    def __init__(self):
        super().__init__()
        conv = lambda i, o, k, s: nn.Sequential(nn.ReflectionPad2d(k // 2), nn.Conv2d(i, o, k, s))
        norm = lambda c: nn.InstanceNorm2d(c, affine=True)
        class Res(nn.Module):
            def __init__(s, c):
                super().__init__()
                s.n = nn.Sequential(conv(c, c, 3, 1), norm(c), nn.ReLU(), conv(c, c, 3, 1), norm(c))
            def forward(s, x):
                return x + s.n(x)
        self.net = nn.Sequential(conv(3, 32, 9, 1), norm(32), nn.ReLU(), conv(32, 64, 3, 2), norm(64), nn.ReLU(), conv(64, 128, 3, 2), norm(128), nn.ReLU(),
            *[Res(128) for _ in range(5)], nn.Upsample(scale_factor=2.0), conv(128, 64, 3, 1), norm(64), nn.ReLU(), nn.Upsample(scale_factor=2.0), conv(64, 32, 3, 1), norm(32), nn.ReLU(), conv(32, 3, 9, 1))
    def forward(self, x):
        return self.net(x)

def tiny_yolo():
    layers, cin = [], 3
    for i, c in enumerate((16, 32, 64, 128, 256, 512)):
        layers += [nn.Conv2d(cin, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c), nn.LeakyReLU(0.1), nn.MaxPool2d(2, 2) if i < 5 else nn.Identity()]
        cin = c
    return nn.Sequential(*layers, nn.Conv2d(512, 1024, 3, 1, 1, bias=False), nn.BatchNorm2d(1024), nn.LeakyReLU(0.1), nn.Conv2d(1024, 1024, 3, 1, 1, bias=False), nn.BatchNorm2d(1024), nn.LeakyReLU(0.1), nn.Conv2d(1024, 125, 1))

class ShuffleV1(nn.Module):
    """ShuffleNet v1, 3 groups: grouped products of 1 x 1 and channel shuffles."""
    def __init__(self, g=3):
        super().__init__()
        class U(nn.Module):
            def __init__(s, i, o, st, first):
                super().__init__()
                s.st, mid = st, o // 4
                out = o - i if st == 2 else o
                s.a, s.an = nn.Conv2d(i, mid, 1, groups=1 if first else g, bias=False), nn.BatchNorm2d(mid)
                s.d, s.dn = nn.Conv2d(mid, mid, 3, st, 1, groups=mid, bias=False), nn.BatchNorm2d(mid)
                s.b, s.bn = nn.Conv2d(mid, out, 1, groups=g, bias=False), nn.BatchNorm2d(out)
            def forward(s, x):
                y = F.relu(s.an(s.a(x)))
                n, c, h, w = y.shape
                y = y.view(n, g, c // g, h, w).transpose(1, 2).reshape(n, c, h, w)
                y = s.bn(s.b(s.dn(s.d(y))))
                return F.relu(torch.cat([F.avg_pool2d(x, 3, 2, 1), y], 1) if s.st == 2 else x + y)
        layers, c = [nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 24
        for k, (o, n) in enumerate([(240, 4), (480, 8), (960, 4)]):
            for j in range(n):
                layers.append(U(c, o, 2 if j == 0 else 1, k == 0 and j == 0))
                c = o
        self.net, self.fc = nn.Sequential(*layers), nn.Linear(c, 1000)
    def forward(self, x):
        return self.fc(self.net(x).mean([2, 3]))

class WaveNet(nn.Module):
    def __init__(self, c=64, n=20):
        super().__init__()
        self.inp = nn.Conv1d(1, c, 1)
        self.d = nn.ModuleList([nn.Conv1d(c, 2 * c, 3, padding=2 ** (i % 10), dilation=2 ** (i % 10)) for i in range(n)])
        self.r = nn.ModuleList([nn.Conv1d(c, 2 * c, 1) for _ in range(n)])
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(c, c, 1), nn.ReLU(), nn.Conv1d(c, 256, 1))
    def forward(self, x):
        x, skip = self.inp(x), 0
        for d, r in zip(self.d, self.r):
            a, b = d(x).chunk(2, 1)
            y, s = r(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, skip = (x + y) * 0.7071, skip + s
        return self.out(skip)

class Crnn(nn.Module):
    def __init__(self):
        super().__init__()
        def c(i, o, bn=False):
            return [nn.Conv2d(i, o, 3, 1, 1)] + ([nn.BatchNorm2d(o)] if bn else []) + [nn.ReLU()]
        self.cnn = nn.Sequential(*c(1, 64), nn.MaxPool2d(2, 2), *c(64, 128), nn.MaxPool2d(2, 2), *c(128, 256, True), *c(256, 256), nn.MaxPool2d((2, 2), (2, 1), (0, 1)), *c(256, 512, True), *c(512, 512), nn.MaxPool2d((2, 2), (2, 1), (0, 1)), nn.Conv2d(512, 512, 2), nn.BatchNorm2d(512), nn.ReLU())
        self.r1, self.r2 = nn.LSTM(512, 256, bidirectional=True), nn.LSTM(512, 256, bidirectional=True)
        self.o = nn.Linear(512, 37)
    def forward(self, x):
        y = self.cnn(x).squeeze(2).permute(2, 0, 1)
        return self.o(self.r2(self.r1(y)[0])[0])

class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        m = lambda *c: [x for i, o in zip(c, c[1:]) for x in (nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU())]
        self.a, self.b = nn.Sequential(*m(3, 64, 64)), nn.Sequential(*m(64, 64, 128, 1024))
        self.c = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 40))
    def forward(self, x):
        return self.c(self.b(self.a(x)).max(2)[0])

class TextCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(20000, 300)
        self.c = nn.ModuleList([nn.Conv1d(300, 128, k) for k in (3, 4, 5)])
        self.o = nn.Linear(384, 5)
    def forward(self, ids):
        x = self.e(ids).transpose(1, 2)
        return self.o(torch.cat([F.relu(c(x)).max(2)[0] for c in self.c], 1))

class T5(nn.Module):
    """Encoder as in T5-small: RMS norms, relative bias, no biases."""
    def __init__(self, t=128, d=512, h=8, n=6):
        super().__init__()
        class L(nn.Module):
            def __init__(s):
                super().__init__()
                s.g1, s.g2 = nn.Parameter(torch.rand(d) + 0.5), nn.Parameter(torch.rand(d) + 0.5)
                s.q, s.k, s.v, s.o = (nn.Linear(d, d, bias=False) for _ in range(4))
                s.wi, s.wo = nn.Linear(d, 2048, bias=False), nn.Linear(2048, d, bias=False)
            def norm(s, x, g):
                return g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
            def forward(s, x, bias):
                b = x.shape[0]
                y = s.norm(x, s.g1)
                sp = lambda z: z.view(b, t, h, d // h).transpose(1, 2)
                p = (sp(s.q(y)) @ sp(s.k(y)).transpose(-1, -2) + bias).softmax(-1)
                x = x + s.o((p @ sp(s.v(y))).transpose(1, 2).reshape(b, t, d))
                return x + s.wo(F.relu(s.wi(s.norm(x, s.g2))))
        self.e, self.bias, self.layers = nn.Embedding(32128, d), nn.Parameter(torch.randn(1, h, t, t) * 0.1), nn.ModuleList([L() for _ in range(n)])
    def forward(self, ids):
        x = self.e(ids)
        for l in self.layers:
            x = l(x, self.bias)
        return x

class VitTiny(nn.Module):
    def __init__(self, d=192, h=3, n=12, t=197):
        super().__init__()
        self.stem, self.cls, self.p = nn.Conv2d(3, d, 16, 16), nn.Parameter(torch.randn(1, 1, d)), nn.Parameter(torch.randn(1, t, d) * 0.1)
        self.layers, self.n, self.head = nn.Sequential(*[Layer(d, h, 4 * d) for _ in range(n)]), nn.LayerNorm(d), nn.Linear(d, 1000)
    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls, x], 1) + self.p
        return self.head(self.n(self.layers(x))[:, 0])

def mnist():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))

class Lrn(nn.Module):
    """CaffeNet: local response normalization, groups of 2."""
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5), nn.Conv2d(96, 256, 5, 1, 2, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
            nn.Conv2d(256, 384, 3, 1, 1), nn.ReLU(), nn.Conv2d(384, 384, 3, 1, 1, groups=2), nn.ReLU(), nn.Conv2d(384, 256, 3, 1, 1, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(6400, 4096), nn.ReLU(), nn.Linear(4096, 1000))
    def forward(self, x):
        return self.net(x)

class MobileVit(nn.Module):
    """A block as in MobileViT: unfolding into patches, attention, folding back."""
    def __init__(self, c=96, d=144, n=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.SiLU(), nn.Conv2d(64, c, 3, 2, 1), nn.SiLU())
        self.a, self.b = nn.Conv2d(c, c, 3, 1, 1), nn.Conv2d(c, d, 1)
        self.layers = nn.Sequential(*[Layer(d, 4, 2 * d) for _ in range(n)])
        self.z, self.f, self.d = nn.Conv2d(d, c, 1), nn.Conv2d(2 * c, c, 3, 1, 1), d
    def forward(self, x):
        x = self.stem(x)
        y = self.b(F.silu(self.a(x)))
        n, d, h, w = y.shape
        y = y.reshape(n * d * h // 2, 2, w // 2, 2).transpose(1, 2).reshape(n, d, h * w // 4, 4).transpose(1, 3).reshape(n * 4, h * w // 4, d)
        y = self.layers(y)
        y = y.reshape(n, 4, h * w // 4, d).transpose(1, 3).reshape(n * d * h // 2, w // 2, 2, 2).transpose(1, 2).reshape(n, d, h, w)
        return F.silu(self.f(torch.cat([x, F.silu(self.z(y))], 1)))

class Seg(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x):
        return self.net(x)["out"]

def ids(n, t, vocab):
    return torch.randint(0, vocab, (n, t))

def image(n=1, s=224):
    return torch.rand(n, 3, s, s)

tv = lambda f, **kw: (lambda: f(weights=None, **kw))
ZOO = {
    "vgg16": (tv(V.vgg16), image),
    "alexnet": (tv(V.alexnet), image),
    "convnext_tiny": (tv(V.convnext_tiny), image),
    "efficientnet_v2_s": (tv(V.efficientnet_v2_s), image),
    "efficientnet_b0": (tv(V.efficientnet_b0), image),
    "resnet50_v2": (Act, image),
    "resnext50": (tv(V.resnext50_32x4d), image),
    "densenet121": (tv(V.densenet121), image),
    "googlenet": (tv(V.googlenet, aux_logits=False, init_weights=True, transform_input=False), image),
    "shufflenet_v2": (tv(V.shufflenet_v2_x1_0), image),
    "mnasnet": (tv(V.mnasnet1_0), image),
    "regnet_y_400mf": (tv(V.regnet_y_400mf), image),
    "regnet_x_400mf": (tv(V.regnet_x_400mf), image),
    "mobilenet_v3_large": (tv(V.mobilenet_v3_large), image),
    "mobilenet_v3_small": (tv(V.mobilenet_v3_small), image),
    "vit_b_16": (tv(V.vit_b_16), image),
    "swin_t": (tv(V.swin_t), image),
    "lraspp": (lambda: Seg(V.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)), image),
    "deeplab": (lambda: Seg(V.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)), image),
    "unet": (UNet, lambda: image(1, 256)),
    "unet_bilinear": (lambda: UNet(up="bilinear"), lambda: image(1, 256)),
    "yolo": (Yolo, lambda: image(1, 320)),
    "dcgan": (dcgan, lambda: torch.randn(1, 100, 1, 1)),
    "dcgan_b8": (dcgan, lambda: torch.randn(8, 100, 1, 1)),
    "gpt2": (lambda: Text(50257, 64, 768, 12, 12, True, causal=True, act="gelu_new"), lambda: ids(1, 64, 50257)),
    "distilbert": (lambda: Text(30522, 128, 768, 12, 6, False, pre=False), lambda: ids(1, 128, 30522)),
    "distilbert_b4": (lambda: Text(30522, 32, 768, 12, 6, False, pre=False), lambda: ids(4, 32, 30522)),
    "whisper_tiny": (Whisper, lambda: torch.randn(1, 80, 3000)),
    "lstm2": (lambda: Rnn(nn.LSTM, 128, 256, 2, False), lambda: torch.randn(1, 64, 128)),
    "bilstm_b4": (lambda: Rnn(nn.LSTM, 128, 256, 2, True), lambda: torch.randn(4, 64, 128)),
    "gru2": (lambda: Rnn(nn.GRU, 128, 256, 2, False), lambda: torch.randn(1, 64, 128)),
    "gru_b8": (lambda: Rnn(nn.GRU, 128, 256, 2, False), lambda: torch.randn(8, 64, 128)),
    "mixer": (Mixer, image),
}
ZOO |= {
    "super_res": (SuperRes, lambda: torch.rand(1, 1, 224, 224)),
    "style": (Style, image),
    "tiny_yolo": (tiny_yolo, lambda: image(1, 416)),
    "shufflenet_v1": (ShuffleV1, image),
    "wavenet": (WaveNet, lambda: torch.randn(1, 1, 4000)),
    "crnn": (Crnn, lambda: torch.rand(1, 1, 32, 160)),
    "pointnet": (PointNet, lambda: torch.randn(1, 3, 1024)),
    "textcnn": (TextCnn, lambda: ids(1, 64, 20000)),
    "t5": (T5, lambda: ids(1, 128, 32128)),
    "vit_tiny": (VitTiny, image),
    "mnist": (mnist, lambda: torch.rand(1, 1, 28, 28)),
    "caffenet": (Lrn, image),
    "mobilevit": (MobileVit, lambda: image(1, 256)),
    "r3d_18": (lambda: V.video.r3d_18(weights=None), lambda: torch.rand(1, 3, 8, 112, 112)),
    "mobilenet_v3_b8": (tv(V.mobilenet_v3_large), lambda: image(8)),
}
for n in (1, 4, 8):
    ZOO[f"resnet50_b{n}"] = (tv(V.resnet50), lambda n=n: image(n))
    ZOO[f"mobilenet_v2_b{n}"] = (tv(V.mobilenet_v2), lambda n=n: image(n))
ZOO["resnet18_b8"] = (tv(V.resnet18), lambda: image(8))

ZOO |= {
    "encoder_small": (lambda: Text(30522, 128, 256, 4, 2, False, pre=False), lambda: ids(1, 128, 30522)),
    "decoder_small": (lambda: Text(5000, 64, 256, 4, 2, True, causal=True, act="gelu_new"), lambda: ids(1, 64, 5000)),
}
# Networks that are traced for images of one size.
ONE_SIZE = {"vit_tiny", "vit_b_16", "swin_t", "shufflenet_v2", "mixer", "mobilevit"}

def open_axes(name, x):
    """The axes of the input that stay open."""
    spatial = {2: "height", 3: "width"} if x.dim() == 4 and name not in ONE_SIZE else {}
    return {"x": {0: "batch", **spatial, **({1: "length"} if x.dim() == 2 and not x.is_floating_point() else {})}}

def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    is_open = "--open-axes" in sys.argv
    for name in [a for a in sys.argv[2:] if a != "--open-axes"] or ZOO:
        file = folder / f"{name}.onnx"
        if file.exists():
            continue
        torch.manual_seed(1)
        make, data = ZOO[name]
        net, x = make(), data()
        norms = [m for m in net.modules() if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d, nn.BatchNorm3d))]
        for key, p in net.named_parameters():
            if key.startswith("heads"):
                nn.init.normal_(p, std=0.02)
            if "layer_scale" in key:
                nn.init.uniform_(p, 0.1, 0.5)
        if norms:
            # Statistics as of a trained network: activations keep their scale.
            net.train()
            for m in norms:
                m.momentum = 1.0
            with torch.no_grad():
                for m in norms:
                    m.weight.uniform_(0.7, 1.3)
                    m.bias.uniform_(-0.2, 0.2)
                net(torch.cat([x, torch.rand_like(x)]) if x.shape[0] < 2 else x)
        net.eval()
        try:
            torch.onnx.export(net, (x,), str(file), dynamo=False, opset_version=17, do_constant_folding=True, input_names=["x"], output_names=["y"], dynamic_axes=open_axes(name, x) if is_open else None)
            if is_open:
                np.savez(file.with_suffix(".npz"), x=x.numpy())
            print(name, file.stat().st_size >> 20, "MB", flush=True)
        except Exception as e:
            print(name, "FAILED", repr(e)[:300], flush=True)

main()
